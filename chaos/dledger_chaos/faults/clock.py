"""Wall clocks that jump or drift. The monotonic clock stays right, as on a real machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..target import Target
from .base import FaultKind, Surroundings

JUMPS_S: Final = (0.5, 10.0, 120.0, 3_600.0, 86_400.0)
DRIFTS_PPM: Final = (500, 20_000, 200_000)


@dataclass(frozen=True, slots=True)
class ClockFault:
    """The wall clocks of `nodes` are off by `offset_s` and drift by `drift_ppm`. `heal` sets them right."""

    nodes: tuple[str, ...]
    offset_s: float
    drift_ppm: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        for node in self.nodes:
            target.disk(node).set_clock(self.offset_s, self.drift_ppm)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        for node in self.nodes:
            target.disk(node).set_clock()


def _draw_nodes(s: Surroundings) -> tuple[str, ...]:
    return tuple(sorted(s.rng.sample(s.members, s.rng.randint(1, len(s.members)))))


def _draw_jump(s: Surroundings) -> ClockFault:
    return ClockFault(_draw_nodes(s), s.rng.choice(JUMPS_S) * s.rng.choice((-1, 1)), 0)


def _draw_drift(s: Surroundings) -> ClockFault:
    return ClockFault(_draw_nodes(s), 0.0, s.rng.choice(DRIFTS_PPM) * s.rng.choice((-1, 1)))


KINDS: Final = (
    FaultKind("clock-jump", "clock", "wall clocks jump by half a second to a day, either way", _draw_jump, (1.0, 15.0)),
    FaultKind("clock-drift", "clock", "wall clocks go wrong by up to 20 %", _draw_drift, (5.0, 20.0)),
)
