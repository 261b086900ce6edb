"""Attempt to found a group a second time: a node starts with `--bootstrap` and an empty directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..convergence import wait_caught_up
from ..target import Target
from .base import FaultKind, Surroundings
from .network import Cut, Directions, between


@dataclass(frozen=True, slots=True)
class SecondFounding:
    """A node is killed, emptied and started with `--bootstrap`; in `cut_off` directions it is cut off from the others.

    It waits for answers of the others, and joins their group. `heal` returns when the node is a voter again.
    """

    nodes: tuple[str, ...]
    cut_off: Directions

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        (node,) = self.nodes
        await target.kill(self.nodes)
        await target.wipe(node)
        if self.cut_off:
            await self._cut.inject(target)
        await target.found_again(node)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        (node,) = self.nodes
        await self._cut.heal(target)
        await target.start_node(node)
        await wait_caught_up(target, node)

    @property
    def _cut(self) -> Cut:
        return Cut(self.cut_off, "hold", self.nodes)


def _draw_second_founding(s: Surroundings) -> SecondFounding:
    node = s.one()
    return SecondFounding((node,), between((node,), s.others(node)) if s.rng.random() < 0.5 else ())


KINDS: Final = (
    FaultKind(
        "second-founding",
        "membership",
        "a node with an empty directory is told to found its group again",
        _draw_second_founding,
        (2.0, 6.0),
        alone=True,
        needs=frozenset({"disk"}),
    ),
)
