"""Producers of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.workload import NOT_STORED, POSITION_DIGITS

COMMIT: Final = 8
ROLLBACK: Final = 12
OPEN: Final = 0
GROUP: Final = "producers"
MOST_ATTEMPTS: Final = 6
AGAIN_SHARE: Final = 0.3
"""The share of ends that are asked for again although they were answered."""
TWICE_SHARE: Final = 0.3
"""The share of ends that are asked for twice at once, as by a client whose connection delivers late."""
HASTE: Final = 0.1


@dataclass(slots=True, eq=False)
class _Transaction:
    """One half, and what its producer asks for: that is nearly always the same until it is answered."""

    operation: int
    queue_id: int
    wishes: list[int]
    ext: dict[str, str]
    attempts: int = 0


class Transactor(Client):
    """Sends halves to lasting topics, and ends most of them: sometimes twice, sometimes both ways at once."""

    def act(self) -> None:
        """Send a half."""
        workload, random = self.workload, self.random
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = random.choice(sorted(workload.lasting))
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        ext |= {"f": "4", "i": f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02" + ext["i"]}
        workload.truth.halves.sent.add(operation)
        if not self.call(code, ext, partial(self._sent, operation, queue_id), body=body):
            workload.not_sent([operation])
            self.pause()

    def _sent(self, operation: int, queue_id: int, answer: Answer | None) -> None:
        workload = self.workload
        if answer is None or answer.code != ResponseCode.SUCCESS:
            if answer is not None and answer.code in NOT_STORED:
                workload.not_sent([operation])
            self.pause()
            return
        position = int(answer.ext["msgId"][-POSITION_DIGITS:], 16)
        workload.truth.halves.half_acknowledged(operation, position)
        workload.counts["half stored"] += 1
        wishes = self.random.choice(
            ([COMMIT], [COMMIT], [ROLLBACK], [OPEN, COMMIT], [COMMIT, ROLLBACK], [ROLLBACK, COMMIT], [OPEN])
        )
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(position),
        }
        self.pause(partial(self._end, _Transaction(operation, queue_id, wishes, ext)), haste=HASTE)

    def _end(self, transaction: _Transaction) -> None:
        """Ask for the next of its wishes; the last one again, until it is answered."""
        wish = transaction.wishes[0]
        transaction.attempts += 1
        if wish == COMMIT:
            self.workload.truth.halves.commit_asked.add(transaction.operation)
        ext = transaction.ext | {"commitOrRollback": str(wish)}
        if self.random.random() < TWICE_SHARE:
            self.call(RequestCode.END_TRANSACTION, dict(ext), lambda _answer: None)
        if not self.call(RequestCode.END_TRANSACTION, ext, partial(self._ended, transaction, wish)):
            self._go_on(transaction, again=True)

    def _ended(self, transaction: _Transaction, wish: int, answer: Answer | None) -> None:
        answered = answer is not None and answer.code == ResponseCode.SUCCESS
        if answered and wish != OPEN:
            self.workload.truth.halves.end_acknowledged(transaction.operation, committed=wish == COMMIT)
        self._go_on(transaction, again=not answered or self.random.random() < AGAIN_SHARE)

    def _go_on(self, transaction: _Transaction, *, again: bool) -> None:
        if len(transaction.wishes) > 1:
            del transaction.wishes[0]
            again = True
        if again and transaction.attempts < MOST_ATTEMPTS:
            self.pause(partial(self._end, transaction), haste=HASTE)
        else:
            self.pause()
