"""Rot of data that a node can restore: its views and its snapshots."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ..errors import TargetError
from ..target import Target
from .base import FaultKind, Surroundings

Part = Literal["consumequeue", "keyindex", "timeindex", "snapshots"]
PARTS: Final[dict[Part, str]] = {
    "consumequeue": "consumequeue/*/*/*",
    "keyindex": "keyindex/*",
    "timeindex": "timeindex.sqlite*",
    "snapshots": "snapshots/*",
}
"""Patterns of each part's files, below a node's directory."""
VIEWS: Final[tuple[Part, ...]] = ("consumequeue", "keyindex", "timeindex")
_PROBE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DerivedRot:
    """Changed bits in the files of a part, or a removed file. A running node continues.

    A start of the node heals the fault. A running node checks unread data only once an hour.
    """

    nodes: tuple[str, ...]
    part: Part
    bits: int
    """Number of changed bits; 0 removes a file instead."""
    running: bool
    seed: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        (node,) = self.nodes
        if not self.running:
            await target.kill(self.nodes)
        directory = next(facts.directory for facts in target.nodes if facts.node_id == node)
        await asyncio.to_thread(_spoil, directory, self.part, self.bits, random.Random(self.seed))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await target.kill(self.nodes)
        await asyncio.gather(*map(target.start_node, self.nodes))


def _spoil(directory: Path, part: Part, bits: int, rng: random.Random) -> None:
    """Flip bits in files of a part, or remove one. Raises `TargetError` if the part has no data yet."""
    found = sorted(path for path in directory.glob(PARTS[part]) if path.is_file())
    written = {path: end for path in found if (end := _find_written_end(path))}
    if not written:
        raise TargetError(f"{directory} has no {part} to spoil")
    paths = sorted(written)
    if not bits:
        rng.choice(paths).unlink(missing_ok=True)
    for _ in range(bits):
        path = rng.choice(paths)
        descriptor = os.open(path, os.O_RDWR)
        try:
            offset = rng.randrange(written[path])
            (byte,) = os.pread(descriptor, 1, offset)
            os.pwrite(descriptor, bytes([byte ^ 1 << rng.randrange(8)]), offset)
        finally:
            os.close(descriptor)


def _find_written_end(path: Path) -> int:
    """Return the end of the data in the first MiB of a file, without zeros at its end: files of views are sparse."""
    try:
        with path.open("rb") as file:
            return len(file.read(_PROBE_BYTES).rstrip(b"\0"))
    except FileNotFoundError:
        return 0


def _draw_views_rot(s: Surroundings) -> DerivedRot:
    return DerivedRot(
        (s.one(),), s.rng.choice(VIEWS), s.rng.choice((0, 1, 16)), s.rng.random() < 0.7, s.rng.getrandbits(32)
    )


def _draw_snapshot_rot(s: Surroundings) -> DerivedRot:
    return DerivedRot((s.one(),), "snapshots", s.rng.choice((1, 16)), s.rng.random() < 0.7, s.rng.getrandbits(32))


KINDS: Final = (
    FaultKind(
        "views-rot",
        "disk",
        "bits of a consume queue, key or time index change, or one of their files is gone",
        _draw_views_rot,
        (2.0, 8.0),
        alone=True,
    ),
    FaultKind("snapshot-rot", "disk", "bits of a node's snapshots change", _draw_snapshot_rot, (2.0, 8.0), alone=True),
)
