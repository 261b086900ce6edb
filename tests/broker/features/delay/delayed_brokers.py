"""Brokers with delayed messages: a group of three simulated nodes, and a broker on a fake node."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.delay.commands import TimerRow
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.reading import Readable
from dledger_broker.features.delay.table import TIMERS, TimerTable
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import DELAY, TIMER_DELAY_MS
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import SLOW_SYNC_S, TIMEOUT_S, TOPIC, Brokers
from dledger_sim.brokers.schedules.pops import codes
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading

DAY_MS = 86_400_000


class Delayed:
    """Group of three nodes, and what it has acknowledged."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.group = self.brokers.group
        self.truth = self.brokers.workload.truth
        self.happened = self.truth.happened

    def run(self, seconds: float) -> None:
        self.brokers.run(seconds)

    def ask(
        self, connection: SimConnection, properties: dict[str, str], *, topic: str = TOPIC, padding: int = 0
    ) -> tuple[int, list[Answer | None]]:
        """Send a message with these properties, and return its operation and the list that receives the answer."""
        workload = self.brokers.workload
        operation = workload.next_operation()
        code, ext, _ = workload.make_send(topic, 0, [operation], batch=False)
        ext["i"] += "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(code, ext=ext, body=encode_body(operation, padding)), TIMEOUT_S, answers.append)
        return operation, answers

    def _send(
        self,
        properties: dict[str, str],
        node: str | None = None,
        *,
        topic: str = TOPIC,
        padding: int = 0,
        settle_s: float = 0.3,
    ) -> tuple[int, Answer]:
        connection = self.brokers.connect(node or self.brokers.leader)
        operation, answers = self.ask(connection, properties, topic=topic, padding=padding)
        self.run(settle_s)
        (answer,) = answers
        assert answer is not None
        assert answer.code == 0
        return operation, answer

    def send(self, delay_ms: int, *, topic: str = TOPIC, padding: int = 0, settle_s: float = 0.3) -> int:
        """Send a message that is due later, wait until it is taken, and return its operation."""
        asked = {TIMER_DELAY_MS: str(delay_ms)}
        return self._send(asked, topic=topic, padding=padding, settle_s=settle_s)[0]

    def send_with_handle(self, delay_ms: int, node: str | None = None) -> tuple[int, str]:
        """Send a delayed message to a node, by default the leader, and return its operation and recall handle."""
        operation, answer = self._send({TIMER_DELAY_MS: str(delay_ms)}, node)
        return operation, answer.ext["recallHandle"]

    def send_level(self, level: int) -> int:
        """Send a message with a delay level, wait until it is taken, and return its operation."""
        return self._send({DELAY: str(level)})[0]

    def begin_recall(
        self, operation: int, handle: str, node: str | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> list[Answer | None]:
        """Recall a message, and return the list that receives the answer."""
        self.truth.due.recall(operation)
        connection = self.brokers.connect(node or self.brokers.leader)
        fields = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "producers"}
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(RequestCode.RECALL_MESSAGE, ext=fields), timeout_s, answers.append)
        return answers

    def recall(self, operation: int, handle: str, node: str | None = None, *, wait_s: float = 1.0) -> int:
        """Recall a message, wait for the answer, and return its code."""
        answers = self.begin_recall(operation, handle, node)
        self.run(wait_s)
        (code,) = codes(answers)
        return code

    def fill_log(self, count: int = 40, padding: int = 4000) -> None:
        """Store ordinary messages, so that the log goes on to other segments."""
        connection = self.brokers.connect(self.brokers.leader)
        for _ in range(count):
            self.brokers.send(connection, TOPIC, padding=padding)
            self.run(0.1)

    def kill_leader(self) -> str:
        """Kill the node that leads, and return its name."""
        old = self.brokers.leader
        self.group.kill(old)
        return old

    def await_leader(self, other_than: str) -> None:
        while self.group.leader is None or self.brokers.leader == other_than:
            self.run(0.01)

    def slow_followers(self, sync_s: float = SLOW_SYNC_S) -> None:
        """Slow down the disks of all nodes but the leader."""
        for name in self.group.nodes.keys() - {self.brokers.leader}:
            self.brokers.slow_down_disk(name, sync_s)

    def is_delivered(self, operation: int) -> bool:
        """Return whether a message is in its topic."""
        return operation in self.truth.stored

    def delivered(self, *operations: int) -> set[bool]:
        """Return whether messages are in their topic: {True} if all are, {False} if none is."""
        return set(map(self.is_delivered, operations))

    @property
    def waiting(self) -> list[int]:
        """The number of messages that wait, in the table of each node that lives."""
        return [table.total.rows for table in self.tables()]

    @property
    def leader(self) -> SimBroker:
        """The broker that leads."""
        return cast(SimBroker, leading(self.group).service)

    @property
    def due_messages(self) -> DueMessages:
        """Part of the leader."""
        return self.leader.service.parts[DueMessages]

    def gauge(self, name: str) -> float:
        """Return what a gauge of the leader reads."""
        return {gauge.name: gauge.read() for gauge in self.due_messages.gauges}[name]

    def break_record(self, operation: int) -> None:
        """Make the current leader fail to read the record of a message that waits."""
        reads = self.due_messages.reads
        (broken,) = (at for at, waiting in self.truth.due.pending.items() if waiting.operation == operation)
        read = reads.read
        self.truth.due.unreadable.add(operation)

        def read_without(rows: Sequence[TimerRow], done: Callable[[Sequence[Readable]], None]) -> None:
            def told(found: Sequence[Readable]) -> None:
                done([(row, None if row[1] == broken else record) for row, record in found])

            read(rows, told)

        reads.read = read_without  # type: ignore[method-assign]

    @property
    def in_flight(self) -> RowsInFlight:
        """Rows that the leader has in flight."""
        return self.due_messages.in_flight

    @property
    def newest_snapshot(self) -> int:
        """The highest position below which the leader's log may be trimmed."""
        return leading(self.group).replica.snapshots.list()[-1].position

    @property
    def first_position(self) -> int:
        """The first position of the leader's log."""
        return leading(self.group).replica.store.first_position

    def tables(self) -> list[TimerTable]:
        """Return the tables of all nodes that live."""
        lives = [node.life for node in self.group.nodes.values()]
        return [cast(SimBroker, life.service).broker.state.table(TIMERS) for life in lives if life is not None]


def trim(delayed: Delayed) -> int:
    """Ask for the highest trim that is possible, and return its position."""
    position = delayed.newest_snapshot
    assert position > 0
    delayed.leader.trim(position)
    return position


def fold_index(broker: ServedBroker) -> None:
    """Bring the time index up to what is applied. Nothing else runs here."""
    follower = broker.service.parts[DueMessages].index.rows.follower
    asyncio.run(broker.memory.env.finish(follower.fold()))


def open_jobs(broker: ServedBroker, *, moves_too: bool = False) -> None:
    """Have the broker deliver what is due, and move what is in the way of a trim."""
    fold_index(broker)
    part = broker.service.parts[DueMessages]
    jobs = [part.fires, part.moves] if moves_too else [part.fires]
    broker.memory.machine.jobs.open(jobs, broker.memory.node, broker.memory.writer)
    broker.settle()


def recall(client: FakeClient, handle: str, topic: str = "T1") -> RemotingCommand:
    """Recall a message, once the time index has what is applied."""
    fold_index(client.broker)
    return client.call_from_disk(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def pending(broker: ServedBroker) -> int:
    """Return the number of messages that wait."""
    return broker.table(TIMERS).total.rows
