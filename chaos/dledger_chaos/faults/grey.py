"""Grey nodes: one node's disk, network or processor is about ten times slower, but nothing fails.

So the other nodes see no error. No other fault is injected at the same time, so that the check `grey` can attribute
waits of clients to this node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..disk.control import Rule
from ..target import Target
from .base import FaultKind, Surroundings
from .composed import Act, Composed
from .disk import DiskRules
from .network import Spoil, around

RUN_S: Final = 0.01
STAND_S: Final = 0.09
"""Pause in seconds of a slow processor, after it has run for `RUN_S`."""

_HOLD_S: Final = (5.0, 20.0)


@dataclass(frozen=True, slots=True)
class SlowProcessor:
    """The processes of `nodes` are paused again and again: they run for `run_s`, and pause for `stand_s`."""

    nodes: tuple[str, ...]
    run_s: float
    stand_s: float

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            target.slow_down(node, self.run_s, self.stand_s)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        for node in self.nodes:
            target.resume(node)


def _draw_node(s: Surroundings) -> str:
    """Return the leader in half of the cases, else any node: a slow leader disturbs more than a slow follower."""
    return s.a_leader() if s.rng.random() < 0.5 else s.one()


def _draw_slow_disk(s: Surroundings) -> DiskRules:
    times = s.rng.choice((1, 2))
    delays = {"sync": 40, "write": 1, "read": 2, "create": 10, "rename": 10}
    return DiskRules((_draw_node(s),), tuple(Rule(call, delay_ms=times * delay) for call, delay in delays.items()))  # type: ignore[arg-type]  # they are calls


def _draw_slow_network(s: Surroundings) -> Composed:
    node = _draw_node(s)
    directions = around(s, node)
    latency = Spoil(directions, "latency", (("latency", s.rng.randint(5, 20)), ("jitter", 5)), (node,))
    bandwidth = Spoil(directions, "bandwidth", (("rate", s.rng.choice((1000, 5000))),), (node,))
    return Composed((node,), (Act(0.0, latency), Act(0.0, bandwidth)))


def _draw_slow_processor(s: Surroundings) -> SlowProcessor:
    return SlowProcessor((_draw_node(s),), RUN_S, STAND_S)


KINDS: Final = (
    FaultKind("grey-disk", "disk", "one node's disk is about ten times slower", _draw_slow_disk, _HOLD_S, alone=True),
    FaultKind(
        "grey-network",
        "network",
        "one node's network is about ten times slower",
        _draw_slow_network,
        _HOLD_S,
        alone=True,
    ),
    FaultKind(
        "grey-processor",
        "process",
        "one node's processor is ten times slower",
        _draw_slow_processor,
        _HOLD_S,
        alone=True,
    ),
)
NAMES: Final = frozenset(kind.name for kind in KINDS)
