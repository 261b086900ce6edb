"""Three simulated nodes, and a client that sends messages with a delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

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
from dledger_sim.brokers.schedules.brokers import TIMEOUT_S, TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.log.registers import leading


class Delayed:
    """The group, and what it answered."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.brokers = Brokers(settings)
        self.truth = self.brokers.workload.truth

    def ask(
        self, connection: SimConnection, properties: dict[str, str], *, topic: str = TOPIC, padding: int = 0
    ) -> tuple[int, list[Answer | None]]:
        """Send a message with these properties; returns its operation, and where its answer will stand."""
        workload = self.brokers.workload
        operation = workload.next_operation()
        code, ext, _ = workload.make_send(topic, 0, [operation], batch=False)
        ext["i"] += "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(code, ext=ext, body=encode_body(operation, padding)), TIMEOUT_S, answers.append)
        return operation, answers

    def send(self, delay_ms: int, *, topic: str = TOPIC, padding: int = 0, settle_s: float = 0.3) -> int:
        """Send a message that is due later, and wait until it is taken; returns its operation."""
        connection = self.brokers.connect(self.brokers.leader)
        operation, answers = self.ask(connection, {TIMER_DELAY_MS: str(delay_ms)}, topic=topic, padding=padding)
        self.brokers.run(settle_s)
        assert [answer.code for answer in answers if answer] == [0]
        return operation

    def send_with_handle(self, delay_ms: int, name: str | None = None) -> tuple[int, str]:
        """The same by a node, the leader if none is named; returns its recall handle, too."""
        connection = self.brokers.connect(name or self.brokers.leader)
        operation, answers = self.ask(connection, {TIMER_DELAY_MS: str(delay_ms)})
        self.brokers.run(0.3)
        (answer,) = answers
        assert answer is not None
        assert answer.code == 0
        return operation, answer.ext["recallHandle"]

    def recall(
        self, operation: int, handle: str, name: str | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> list[Answer | None]:
        """Ask for a message back; the answer will stand in the list."""
        self.truth.due.recall(operation)
        connection = self.brokers.connect(name or self.brokers.leader)
        fields = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "producers"}
        answers: list[Answer | None] = []
        connection.call(RemotingCommand(RequestCode.RECALL_MESSAGE, ext=fields), timeout_s, answers.append)
        return answers

    def send_level(self, level: int) -> int:
        """The same with a delay level."""
        operation, answers = self.ask(self.brokers.connect(self.brokers.leader), {DELAY: str(level)})
        self.brokers.run(0.3)
        assert [answer.code for answer in answers if answer] == [0]
        return operation

    def fill_log(self, count: int = 40, padding: int = 4000) -> None:
        """Store ordinary messages, so that the log goes on to other segments."""
        connection = self.brokers.connect(self.brokers.leader)
        for _ in range(count):
            self.brokers.send(connection, TOPIC, padding=padding)
            self.brokers.run(0.1)

    def is_delivered(self, operation: int) -> bool:
        """Whether a message stands in its topic."""
        return operation in self.truth.stored

    @property
    def leader(self) -> SimBroker:
        """The broker that leads."""
        return cast(SimBroker, leading(self.brokers.group).service)

    @property
    def due_messages(self) -> DueMessages:
        """The leader's part."""
        return self.leader.service.parts[DueMessages]

    def break_record(self, operation: int) -> None:
        """Have the present leader fail to read the record of a message that waits."""
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
        """What the leader has on its way."""
        return self.due_messages.in_flight

    @property
    def newest_snapshot(self) -> int:
        """The highest position below which the leader's log may be trimmed."""
        return leading(self.brokers.group).replica.snapshots.list()[-1].position

    def tables(self) -> list[TimerTable]:
        """The tables of all nodes that live."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        return [cast(SimBroker, life.service).broker.state.table(TIMERS) for life in lives if life is not None]
