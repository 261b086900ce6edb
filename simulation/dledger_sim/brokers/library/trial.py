"""Trial of the client library: a seed's client processes on a group of brokers, and their judge."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from dledger_sim.brokers.library.crew import KINDS, REMADE, Crew, LastSender, Mover, Remaker
from dledger_sim.brokers.library.judge import Deliveries
from dledger_sim.brokers.library.members import Habits, Sending
from dledger_sim.brokers.library.process import Process, World
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.brokers.trial import BrokerTrial
from dledger_sim.brokers.workload import ClientSettings
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.invariants import require

STEP_S: Final = 0.25
HANDLED_S: Final = 240.0
"""Time limit within which all messages are handled, including repeated ones, in seconds."""
SHARES_KNOWN_S: Final = 22.0
"""Time limit within which all members know their shares, in seconds.

A member without notices checks every 20 s.
"""
SENT_S: Final = 20.0
CLOSE_S: Final = 30.0
FIRST_NUMBER: Final = 100
"""First number of this trial's administrators, above those of the other clients."""


class LibraryTrial:
    """`Trial` of client processes. A `BrokerTrial` provides the brokers, and the producers other than `Producer`."""

    def __init__(
        self,
        random: Random,
        settings: ClientSettings,
        brokers: BrokerSettings,
        operations: int | None,
        *,
        habits: Habits,
        members: int,
        change_s: float,
        senders: int,
        movers: int,
        patience: float,
        strikes: bool,
    ) -> None:
        self._brokers = BrokerTrial(random, settings, brokers, operations)
        self._workload = self._brokers.workload
        self._random = Random(f"{random.random()} library")
        self._habits = habits
        self._members = members
        self._change_s = change_s
        self._senders = senders
        self._movers = movers
        self._patience = patience
        self._has_strikes = strikes
        self._world: World | None = None
        self._deliveries: Deliveries | None = None
        self._crews: list[Crew] = []
        self._sending: list[Sending] = []

    @property
    def counts(self) -> Counter[str]:
        """Number of operations by outcome, and of rare things that happened."""
        return self._brokers.counts

    def serve(self, group: SimGroup, life: Life) -> SimBroker:
        """Return the broker of a new life of a node."""
        return self._brokers.serve(group, life)

    def start(self, group: SimGroup) -> None:
        """Start the clients and the client processes."""
        workload = self._workload
        topics = (*sorted(workload.lasting), REMADE)
        world = self._world = World(group, workload.truth, self._random, dict.fromkeys(KINDS, topics))
        workload.truth.seeking.update(KINDS)
        workload.truth.restless.update(KINDS)
        self._deliveries = Deliveries(world, frozenset({"ordered"}), self.counts)
        self._brokers.start(group)
        for name, kinds in KINDS.items():
            crew = Crew(world, name, kinds, self._deliveries, self._habits, self._members, self.counts)
            self._crews.append(crew)
            crew.begin(self._change_s)
        for number in range(self._senders):
            sending = Sending(Process(world, f"producer-{number}"), workload)
            self._sending.append(sending)
            sending.start()
        Remaker(workload, FIRST_NUMBER).pause()
        for number in range(self._movers):
            mover = Mover(workload, FIRST_NUMBER + 1 + number, self._patience)
            mover.pause()
            for crew in self._crews if self._has_strikes else ():
                crew.on_change.append(mover.strike)

    def stop(self) -> None:
        """Stop the clients, and calm the members down."""
        self._brokers.stop()
        for crew in self._crews:
            crew.calm_down()

    def judge(self, group: SimGroup) -> None:
        """Check that all messages are handled, that the members close, and that the brokers keep their promises."""
        self._await_all_handled(group)
        self._judge_calm(group)
        for crew in self._crews:
            crew.close()
        deadline = group.scheduler.now + CLOSE_S
        while still_there := [name for crew in self._crews for name in crew.still_there]:
            require(group.scheduler.now < deadline, "a consumer that is closed ends soon", members=still_there)
            group.scheduler.run_until(group.scheduler.now + STEP_S)
        self._brokers.judge(group)

    def _await_all_handled(self, group: SimGroup) -> None:
        world, deliveries = self._world, self._deliveries
        assert world is not None
        assert deliveries is not None
        world.healed_at = max(world.healed_at, group.scheduler.now)
        deadline = group.scheduler.now + HANDLED_S
        while (left := deliveries.left()) or (failed := deliveries.failed()):
            if group.scheduler.now >= deadline:
                require(not left, "every queue is read to its end", queues=left)
                require(not failed, "every message is handled with success in the end", messages=failed[:5])
            group.scheduler.run_until(group.scheduler.now + STEP_S)
        self.counts["seconds until all was handled"] += max(0, int(group.scheduler.now - world.healed_at))

    def _judge_calm(self, group: SimGroup) -> None:
        """Send to consumers whose shares no longer change, and check that each gets its messages once."""
        assert self._world is not None
        assert self._deliveries is not None
        group.scheduler.run_until(max(group.scheduler.now, self._world.healed_at + SHARES_KNOWN_S))
        self._deliveries.calm_from = group.scheduler.now
        sender = LastSender(self._workload, FIRST_NUMBER - 1)
        sender.act()
        deadline = group.scheduler.now + SENT_S
        while not sender.is_done:
            require(group.scheduler.now < deadline, "a healed group stores messages")
            group.scheduler.run_until(group.scheduler.now + STEP_S)
        self._await_all_handled(group)
