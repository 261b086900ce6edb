"""Injector of faults: draws them from the seed, injects and heals them, and restarts dead nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from dledger_sim.log.cases import Strike, fault_of, strike_of
from dledger_sim.log.faults import Fault, HangingCall, HangingDisk, Trim
from dledger_sim.log.group import SimGroup
from dledger_sim.log.hanging import Hang, begin_hang, judge_hang
from dledger_sim.log.kinds import DRAWS, TRIM
from dledger_sim.log.operator import Operator

SUPERVISE_S = 0.4
PATIENCE = 3
"""Number of starts of a node with damaged files before it gets an empty directory."""


class Nemesis:
    """Injector that heals each fault in time and restarts dead nodes.

    With `strikes` it draws nothing, but injects exactly these faults, each at its time.
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
        """Prepare the injector.

        `kinds` are weights; `interval_s` and `trim_s` are the mean times between faults and between trims.
        """
        self._group = group
        self._random = random
        self._kinds = list(kinds)
        self._weights = list(kinds.values())
        self._interval_s = interval_s
        self._most_at_once = most_at_once
        self._trim_s = trim_s
        self._given_strikes = strikes
        self._faults_in_force: dict[int, Fault] = {}
        self._fault_count = self._trouble_count = 0
        self._active = True
        self._refused_starts: Counter[str] = Counter()
        self._hang: tuple[int, Hang] | None = None
        """Hanging disk that is being judged, with the number of its fault."""
        self._operator = Operator(group)
        self.injected: Counter[str] = Counter()
        self.strikes: list[Strike] = []
        """Faults that were injected so far."""

    def start(self) -> None:
        """Start the faults."""
        if self._given_strikes is None:
            self._schedule_next()
            self._trim_repeatedly()
        else:
            for strike in self._given_strikes:
                fault = fault_of(strike)
                self._group.scheduler.at(strike.at, partial(self._inject_given, strike.kind, fault))
        self._supervise()

    def _schedule_next(self) -> None:
        self._group.scheduler.after(self._random.expovariate(1 / self._interval_s), self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        self._schedule_next()
        if len(self._faults_in_force) < self._most_at_once:
            kind = self._random.choices(self._kinds, self._weights)[0]
            self._inject(kind, DRAWS[kind](self._random, self._group))

    def _trim_repeatedly(self) -> None:
        """Trim the log now and then, independently of the other faults."""
        self._group.scheduler.after(self._random.expovariate(1 / self._trim_s), self._trim_repeatedly)
        if self._active:
            self._inject(TRIM, Trim(self._random.random()))

    def _inject_given(self, kind: str, fault: Fault) -> None:
        if self._active:
            self._inject(kind, fault)

    def _inject(self, kind: str, fault: Fault) -> None:
        group = self._group
        hang = None
        if isinstance(fault, HangingDisk | HangingCall) and not self._faults_in_force:
            hang = begin_hang(group, fault.node, self._trouble_count)
        if not fault.inject(group):
            return
        self._trouble_count += not isinstance(fault, HangingDisk | HangingCall | Trim)
        group.say(f"inject {fault}")
        self.injected[kind] += 1
        self.strikes.append(strike_of(group.scheduler.now, kind, fault))
        if not fault.duration_s:
            return
        self._fault_count += 1
        serial = self._fault_count
        self._faults_in_force[serial] = fault
        if hang is not None:
            self._hang = serial, hang
        group.scheduler.after(fault.duration_s, lambda: self._heal(serial))

    def _heal(self, serial: int) -> None:
        fault = self._faults_in_force.pop(serial, None)
        if fault is not None:
            self._group.say(f"heal {fault}")
            if self._hang is not None and self._hang[0] == serial:
                (_, hang), self._hang = self._hang, None
                judge_hang(self._group, hang, self._trouble_count)
            fault.heal(self._group)

    def _supervise(self) -> None:
        """Start nodes that died. Wipe a node that still refuses to start because its files rotted."""
        self._group.scheduler.after(SUPERVISE_S, self._supervise)
        self._operator.look()
        if self._faults_in_force:
            return
        if self._group.healthy():
            self._refused_starts.clear()
        for name, node in self._group.nodes.items():
            if node.life is not None or name in self._group.kept_down:
                continue
            self._refused_starts[name] += 1
            if node.rotten and self._refused_starts[name] > PATIENCE:
                self._group.wipe(name)
            self._group.start(name)

    def heal_all(self) -> None:
        """End all faults. Dead nodes are started again."""
        self._active = False
        for serial in list(self._faults_in_force):
            self._heal(serial)
        group = self._group
        group.network.heal()
        group.unreachable.clear()
        group.leaving.clear()
        for node in group.nodes.values():
            node.disk.faults.clear()
            node.disk.make_room()
