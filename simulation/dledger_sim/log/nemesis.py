"""Draws faults from the seed, injects them, heals them, and keeps dead nodes from staying dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from dledger_sim.log.cases import Strike, fault_of, strike_of
from dledger_sim.log.faults import Fault, Trim
from dledger_sim.log.group import SimGroup
from dledger_sim.log.kinds import DRAWS, TRIM
from dledger_sim.log.operator import Operator

SUPERVISE_S = 0.4
PATIENCE = 3
"""Starts of a node with damaged files, before it is given an empty directory."""


class Nemesis:
    """Injects what it draws, heals it in time, and keeps dead nodes from staying dead.

    With `strikes` nothing is drawn: these faults are injected, each at its time.
    """

    def __init__(
        self,
        group: SimGroup,
        random: Random,
        *,
        kinds: Mapping[str, float],
        interval_s: float,
        most_at_once: int,
        trim_s: float,
        strikes: Sequence[Strike] | None = None,
    ) -> None:
        """`kinds` are weights; `interval_s` and `trim_s` are the mean times between two faults, and two trims."""
        self._group = group
        self._random = random
        self._kinds = list(kinds)
        self._weights = list(kinds.values())
        self._interval_s = interval_s
        self._most_at_once = most_at_once
        self._trim_s = trim_s
        self._given = strikes
        self._open: dict[int, Fault] = {}
        self._serial = 0
        self._active = True
        self._refused: Counter[str] = Counter()
        self._operator = Operator(group)
        self.injected: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        """What was injected so far."""

    def start(self) -> None:
        """Let the trouble begin."""
        if self._given is None:
            self._later()
            self._retain()
        else:
            for strike in self._given:
                fault = fault_of(strike)
                self._group.scheduler.at(strike.at, partial(self._inject_given, strike.kind, fault))
        self._supervise()

    def _later(self) -> None:
        self._group.scheduler.after(self._random.expovariate(1 / self._interval_s), self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        self._later()
        if len(self._open) < self._most_at_once:
            kind = self._random.choices(self._kinds, self._weights)[0]
            self._inject(kind, DRAWS[kind](self._random, self._group))

    def _retain(self) -> None:
        """The log is trimmed now and then, whatever else goes wrong."""
        self._group.scheduler.after(self._random.expovariate(1 / self._trim_s), self._retain)
        if self._active:
            self._inject(TRIM, Trim(self._random.random()))

    def _inject_given(self, kind: str, fault: Fault) -> None:
        if self._active:
            self._inject(kind, fault)

    def _inject(self, kind: str, fault: Fault) -> None:
        group = self._group
        if not fault.inject(group):
            return
        group.say(f"inject {fault}")
        self.injected[kind] += 1
        self.strikes.append(strike_of(group.scheduler.now, kind, fault))
        if not fault.duration_s:
            return
        self._serial += 1
        serial = self._serial
        self._open[serial] = fault
        group.scheduler.after(fault.duration_s, lambda: self._heal(serial))

    def _heal(self, serial: int) -> None:
        fault = self._open.pop(serial, None)
        if fault is not None:
            self._group.say(f"heal {fault}")
            fault.heal(self._group)

    def _supervise(self) -> None:
        """Start what died of itself; give up on what refuses to start because its files rotted."""
        self._group.scheduler.after(SUPERVISE_S, self._supervise)
        self._operator.look()
        if self._open:
            return
        if self._group.healthy():
            self._refused.clear()
        for name, node in self._group.nodes.items():
            if node.life is not None or name in self._group.kept_down:
                continue
            self._refused[name] += 1
            if node.rotten and self._refused[name] > PATIENCE:
                self._group.wipe(name)
            self._group.start(name)

    def heal_all(self) -> None:
        """End all trouble; nodes that died are started again."""
        self._active = False
        for serial in list(self._open):
            self._heal(serial)
        group = self._group
        group.network.heal()
        group.unreachable.clear()
        group.leaving.clear()
        for node in group.nodes.values():
            node.disk.faults.clear()
            node.disk.make_room()
