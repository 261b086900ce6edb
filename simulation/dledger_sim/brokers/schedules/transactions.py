"""Schedules of transactions whose end meets another event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from dledger_broker.features.transactions.table import HALVES, HalfTable
from dledger_remoting.codes import RequestCode
from dledger_remoting.ids import parse_offset_message_id
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker

HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
COMMIT: Final = 8
ROLLBACK: Final = 12
SLOW_SYNC_S: Final = 1.5


class Transacting:
    """Three simulated nodes, and producers of transactions."""

    def __init__(self) -> None:
        self.brokers = Brokers()

    def send(self, seconds: float = 0.5) -> tuple[int, Answer]:
        """Send a half. Return the operation of its message, and the answer."""
        brokers = self.brokers
        operation = brokers.workload.next_operation()
        code, ext, _ = brokers.workload.make_send(TOPIC, 0, [operation], batch=False)
        ext = {**ext, "f": "4", "i": HALF + ext.get("i", "")}
        brokers.workload.truth.halves.sent[operation] = brokers.scheduler.now
        answers = brokers.ask(brokers.connect(brokers.leader), code, ext, encode_body(operation, 0))
        brokers.run(seconds)
        (answer,) = answers
        assert answer is not None
        assert answer.code == 0, answer
        return operation, answer

    def end(self, operation: int, sent: Answer, what: int, node: str | None = None) -> list[Answer | None]:
        """Ask a node to end a half. The answer will be in the returned list."""
        ext = {
            "producerGroup": "PG",
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(parse_offset_message_id(sent.ext["msgId"])[1]),
            "commitOrRollback": str(what),
        }
        if what == COMMIT:
            self.brokers.workload.truth.halves.commit_asked.add(operation)
        connection = self.brokers.connect(node or self.brokers.leader)
        return self.brokers.ask(connection, RequestCode.END_TRANSACTION, ext)

    def tables(self) -> list[HalfTable]:
        """Return the half tables of all live nodes."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        return [cast(SimBroker, life.service).broker.state.table(HALVES) for life in lives if life is not None]

    def stored(self, operation: int) -> bool:
        """Return whether the message is in its queue. The simulator's judge refuses a second copy."""
        return operation in self.brokers.workload.truth.stored


def codes(answers: list[Answer | None]) -> list[int]:
    """Return the codes of the answers that came."""
    return [answer.code for answer in answers if answer is not None]


def commit_on_its_way_when_its_half_is_to_be_given_up() -> None:
    """Check that a half whose commit is in flight is not given up.

    1. A half was checked the maximum number of times, and no producer has ended it.
    2. Its commit comes, and takes long to reach a majority.
    3. Meanwhile the half would be given up. It must not be: the commit may be in the log.

    Seeds hardly meet this: their producers end a half soon after its send, or as soon as they are asked. A half is
    given up a second after the last question. The commit would have to be on its way for as long.
    """
    transacting = Transacting()
    brokers = transacting.brokers
    transacting.send()
    while not all(table.ended for table in transacting.tables()):
        brokers.run(0.1)  # until a half is given up: this creates the topic that keeps such halves
    operation, sent = transacting.send()
    most = BrokerSettings().transaction_check_max
    while not all(half.checks == most for table in transacting.tables() for half in table.open.values()):
        brokers.run(0.1)
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, SLOW_SYNC_S)
    answers = transacting.end(operation, sent, COMMIT)
    brokers.run(8.0)
    assert codes(answers) == [0]
    assert transacting.stored(operation)
    assert [len(table.open) for table in transacting.tables()] == [0] * 3


TRANSACTION_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (commit_on_its_way_when_its_half_is_to_be_given_up,)
