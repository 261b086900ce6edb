"""Nodes at the limit of their file descriptors."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..disk.control import Rule
from ..errors import TargetError
from ..target import Target
from .base import FaultKind, Surroundings


@dataclass(frozen=True, slots=True)
class FewFiles:
    """Nodes can open only `spare` more files than they have open. A further open fails with EMFILE.

    For each file that a node closes it may open another. `heal` ends the limit. A node that serves must not end because
    of it.
    """

    nodes: tuple[str, ...]
    spare: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            pid = target.pid(node)
            if pid is None:
                raise TargetError(f"{node} does not run: what it has open is not known")
            directory = next(facts.directory for facts in target.nodes if facts.node_id == node)
            most_open = max(1, _count_open_files(pid, directory) + self.spare)
            target.disk(node).hold(self, (Rule("open", most_open=most_open),))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        for node in self.nodes:
            target.disk(node).release(self)
        await asyncio.gather(*map(target.start_node, self.nodes))


def _count_open_files(pid: int, directory: Path) -> int:
    """Count the open files of a process below a directory, without its log files."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            path = os.readlink(link)
        except OSError:
            continue  # it was closed just now
        count += path.startswith(f"{directory}/") and not path.startswith(f"{directory}/log/")
    return count


def _draw_few_files(s: Surroundings) -> FewFiles:
    nodes = s.members if s.rng.random() < 0.3 else (s.one(),)
    return FewFiles(nodes, s.rng.choice((0, 1, 4)))


KINDS: Final = (
    FaultKind("few-descriptors", "disk", "nodes can open no more files", _draw_few_files, (3.0, 15.0), alone=True),
)
