"""Producers that repeat idempotent sends: after every uncertain outcome, and sometimes after a certain outcome."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from dledger_remoting.codes import ResponseCode
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.workload import NOT_STORED, Workload

MOST_ATTEMPTS: Final = 6
AGAIN_SHARE: Final = 0.3
"""Share of acknowledged sends that are repeated nevertheless, as if the client had not read the answer."""
HASTE: Final = 0.1
"""Factor for the pause before a repetition. It is short, so that the repetition meets the first attempt in flight."""


AT_A_TIME: Final = (1, 1, 3, 8)
"""Number of sends that begin together."""


@dataclass(slots=True, eq=False)
class _Send:
    """Send with its repetitions, which have the same fields and the same body."""

    operations: list[int]
    queue_id: int
    code: int
    ext: dict[str, str]
    body: bytes
    attempts: int = 0
    uncertain: bool = False
    """True if an attempt may have been stored, or may still be stored."""


class Repeater(Client):
    """Producer that repeats sends to lasting topics, often several at a time with consecutive keys.

    It avoids topics that are deleted and made again: a repetition to such a topic is stored again.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._sends: list[_Send] = []

    def act(self) -> None:
        """Begin some sends."""
        topic = self.random.choice(sorted(self.workload.lasting))
        self._sends = [self._make_send(self.random, topic) for _ in range(self.random.choice(AT_A_TIME))]
        for send in list(self._sends):
            self._attempt(send)

    def _attempt(self, send: _Send) -> None:
        send.attempts += 1
        if not self.call(send.code, dict(send.ext), partial(self._handle_answer, send), body=send.body):
            self._finish_attempt(send, again=True)

    def _make_send(self, random: Random, topic: str) -> _Send:
        workload, settings = self.workload, self.workload.settings
        many = random.random() < settings.batch_share
        operations = [
            workload.next_operation() for _ in range(random.randint(2, settings.most_in_batch) if many else 1)
        ]
        queue_id = random.randrange(settings.queues)
        code, ext, body = workload.make_send(topic, queue_id, operations, batch=many)
        workload.truth.idempotent.update(dict.fromkeys(operations, operations[0]))
        return _Send(operations, queue_id, code, ext | {"idempotent": "true"}, body)

    def _handle_answer(self, send: _Send, answer: Answer | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.workload.sent(send.operations, send.queue_id, answer)
            send.uncertain = True
            self._finish_attempt(send, again=self.random.random() < AGAIN_SHARE)
            return
        send.uncertain |= answer is None or answer.code not in NOT_STORED
        self._finish_attempt(send, again=True)

    def _finish_attempt(self, send: _Send, *, again: bool) -> None:
        """Handle the outcome of an attempt: make another attempt, or finish."""
        if again and send.attempts < MOST_ATTEMPTS:
            self.workload.counts["send repeated"] += 1
            self.pause(partial(self._attempt, send), haste=HASTE)
            return
        if not send.uncertain:
            self.workload.not_sent(send.operations)
        self._sends.remove(send)
        if not self._sends:
            self.pause()
