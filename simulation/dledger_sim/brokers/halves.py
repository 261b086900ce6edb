"""Producers of transactions, which end them by themselves or when asked, and the check that all transactions end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from dledger_broker.features.transactions.table import HALVES
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import CheckTransactionHeader, decode_ext
from dledger_remoting.heartbeat import HeartbeatData, ProducerData
from dledger_remoting.record import decode_record
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.message_bodies import operation_of, position_in
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.brokers.workload import NOT_STORED
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

COMMIT: Final = 8
ROLLBACK: Final = 12
OPEN: Final = 0
GROUP: Final = "producers"
MOST_ATTEMPTS: Final = 6
AGAIN_SHARE: Final = 0.3
"""Share of answered ends that are requested again."""
TWICE_SHARE: Final = 0.3
"""Share of ends that are requested twice at once, as if a connection delivered late."""
HASTE: Final = 0.1
KNOWN_SHARE: Final = 0.6
"""Share of questions about an undecided transaction that decide it."""
LATE_S: Final = 10.0
"""Time in seconds that a whole group may take beyond the last check before it gives a half up."""


@dataclass(slots=True, eq=False)
class _Transaction:
    """Half, with the ends that its producer requests one after another. The last one is repeated."""

    operation: int
    queue_id: int
    wishes: list[int]
    ext: dict[str, str]
    attempts: int = 0


class Transactor(Client):
    """Producer of halves to lasting topics. It ends most of them, some of them twice or first one way, then the other.

    All producers are in one group, so each answers checks of all halves.
    """

    def connected(self, connection: SimConnection) -> None:
        """Register as a member of the producer group."""
        connection.on_push = self._answer_check
        body = encode_body(HeartbeatData(self.name, [ProducerData(GROUP)]))
        connection.call(
            RemotingCommand(RequestCode.HEART_BEAT, body=body), self.workload.settings.timeout_s, _ignore_answer
        )

    def act(self) -> None:
        """Send a half."""
        workload, random = self.workload, self.random
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = random.choice(sorted(workload.lasting))
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        ext |= {"f": "4", "i": f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02" + ext["i"]}
        workload.truth.halves.sent[operation] = workload.group.scheduler.now
        if not self.call(code, ext, partial(self._handle_half_answer, operation, queue_id), body=body):
            workload.not_sent([operation])
            self.pause()

    def _handle_half_answer(self, operation: int, queue_id: int, answer: Answer | None) -> None:
        workload = self.workload
        if answer is None or answer.code != ResponseCode.SUCCESS:
            if answer is not None and answer.code in NOT_STORED:
                workload.not_sent([operation])
            self.pause()
            return
        position = position_in(answer.ext["msgId"])
        workload.truth.halves.half_acknowledged(operation, position)
        workload.counts["half stored"] += 1
        wishes = self.random.choice(
            ([COMMIT], [COMMIT], [ROLLBACK], [OPEN, COMMIT], [COMMIT, ROLLBACK], [ROLLBACK, COMMIT], [OPEN])
        )
        if wishes[-1] != OPEN:
            workload.decided.setdefault(operation, wishes[-1])
        ext = _make_end_fields(int(answer.ext["queueOffset"]), position)
        self.pause(partial(self._request_end, _Transaction(operation, queue_id, wishes, ext)), haste=HASTE)

    def _request_end(self, transaction: _Transaction) -> None:
        """Request the next end. Repeat the last one until it is answered, with `MOST_ATTEMPTS` requests at most."""
        wish = transaction.wishes[0]
        transaction.attempts += 1
        if wish == COMMIT:
            self.workload.truth.halves.commit_asked.add(transaction.operation)
        ext = transaction.ext | {"commitOrRollback": str(wish)}
        if self.random.random() < TWICE_SHARE:
            self.call(RequestCode.END_TRANSACTION, dict(ext), lambda _answer: None)
        if not self.call(RequestCode.END_TRANSACTION, ext, partial(self._handle_end_answer, transaction, wish)):
            self._continue(transaction, again=True)

    def _handle_end_answer(self, transaction: _Transaction, wish: int, answer: Answer | None) -> None:
        answered = answer is not None and answer.code == ResponseCode.SUCCESS
        if answered and wish != OPEN:
            self.workload.truth.halves.end_acknowledged(transaction.operation, committed=wish == COMMIT)
        self._continue(transaction, again=not answered or self.random.random() < AGAIN_SHARE)

    def _continue(self, transaction: _Transaction, *, again: bool) -> None:
        if len(transaction.wishes) > 1:
            del transaction.wishes[0]
            again = True
        if again and transaction.attempts < MOST_ATTEMPTS:
            self.pause(partial(self._request_end, transaction), haste=HASTE)
        else:
            self.pause()

    def _answer_check(self, command: RemotingCommand) -> None:
        """Answer a check (39) with the end of a transaction, which may be another producer's.

        Do not answer if the end is undecided.
        """
        require(
            command.code == RequestCode.CHECK_TRANSACTION_STATE, "producers are asked about halves", found=command.code
        )
        header = decode_ext(CheckTransactionHeader, command.ext)
        record = decode_record(command.body)
        operation, position = operation_of(record.body), header.commit_log_offset
        require(record.topic in self.workload.lasting, "a check shows a half under its real topic", topic=record.topic)
        self.workload.truth.check_asked(operation, position)
        if operation not in self.workload.decided and self.random.random() < KNOWN_SHARE:
            self.workload.decided[operation] = self.random.choice((COMMIT, ROLLBACK))
        wish = self.workload.decided.get(operation)
        if wish is None:
            return
        if wish == COMMIT:
            self.workload.truth.halves.commit_asked.add(operation)
        ext = _make_end_fields(header.tran_state_table_offset, position)
        ext |= {"commitOrRollback": str(wish), "fromTransactionCheck": "true"}
        self.call(RequestCode.END_TRANSACTION, ext, partial(self._handle_check_answer, operation, wish))

    def _handle_check_answer(self, operation: int, wish: int, answer: Answer | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.workload.truth.halves.end_acknowledged(operation, committed=wish == COMMIT)
            self.workload.counts["transaction ended when asked"] += 1


def check_ended(group: SimGroup, settings: BrokerSettings) -> None:
    """Check that a whole group ends every transaction: as its producers say, or because no producer answers."""
    if group.rotten or group.clocks_jumped:
        return  # an unreadable half is not given up, and group time may stop for a minute
    interval_s, immune_s = settings.transaction_check_interval_ms / 1000, settings.transaction_timeout_ms / 1000
    scheduler = group.scheduler
    deadline = scheduler.now + immune_s + (settings.transaction_check_max + 1) * interval_s + LATE_S
    while still_open := _find_open_halves(group):
        require(scheduler.now < deadline, "every transaction ends", positions=still_open)
        scheduler.run_until(scheduler.now + 0.5)


def _find_open_halves(group: SimGroup) -> list[int]:
    lives = [node.life for node in group.nodes.values() if node.life is not None]
    tables = [cast(SimBroker, life.service).broker.state.table(HALVES) for life in lives]
    return sorted({position for table in tables for position in table.open})


def _make_end_fields(queue_offset: int, position: int) -> dict[str, str]:
    """Return the fields of an end that identify its half."""
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(position),
    }


def _ignore_answer(_answer: Answer | None) -> None:
    """Ignore an answer."""
