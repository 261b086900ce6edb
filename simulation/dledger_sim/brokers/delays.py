"""Producers of delayed messages, and the check that the group delivers them."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.due import DueTruth
from dledger_sim.brokers.message_bodies import position_in
from dledger_sim.brokers.workload import NOT_STORED, Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

DELAYS_S: Final = (0.05, 0.3, 1.0, 2.5, 7.0, 20.0)
LATE_S: Final = 10.0
"""Time limit within which a whole group delivers due messages, in seconds."""
LEVELS_S: Final = (1.0, 5.0, 10.0)
RECALL_SHARE: Final = 0.25
"""Share of requests that recall a message, once the client has messages to recall."""
KEPT_HANDLES: Final = 8
IDEMPOTENT_SHARE: Final = 0.5
MAX_ATTEMPTS: Final = 5


class _Send(NamedTuple):
    """Message to send. `attempts` is the number of earlier attempts of unknown outcome."""

    operation: int
    topic: str
    queue_id: int
    code: int
    ext: dict[str, str]
    body: bytes
    attempts: int = 0


class Delayer(Client):
    """Producer of messages with a delay level or a time. Half of the sends are idempotent.

    It repeats an idempotent send of unknown outcome. It recalls some messages, and some of these again.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._handles: deque[tuple[int, str, str]] = deque(maxlen=KEPT_HANDLES)
        """Operation, topic and recall handle of the last messages."""
        self._send_to_repeat: _Send | None = None
        """Idempotent send of unknown outcome, which is repeated next."""

    def act(self) -> None:
        """Send, repeat, or recall."""
        if self._send_to_repeat is not None:
            send, self._send_to_repeat = self._send_to_repeat, None
            self._send(send)
        elif self._handles and self.random.random() < RECALL_SHARE:
            self._recall(*self.random.choice(self._handles))
        else:
            self._send(self._make_send())

    def _make_send(self) -> _Send:
        workload, random = self.workload, self.random
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = workload.any_topic()
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        delay_s, name, value = self._draw_delay()
        ext["i"] += f"{name}\x01{value}\x02"
        if topic in workload.lasting and random.random() < IDEMPOTENT_SHARE:  # a passing topic may be made anew
            ext["idempotent"] = "true"
        workload.truth.due.ask(operation, workload.group.scheduler.now + delay_s)
        return _Send(operation, topic, queue_id, code, ext, body)

    def _send(self, send: _Send) -> None:
        def done(answer: Answer | None) -> None:
            self._handle_answer(send, answer)
            self.pause()

        if not self.call(send.code, dict(send.ext), done, body=send.body):
            self._note_not_stored(send)
            self.pause()

    def _note_not_stored(self, send: _Send) -> None:
        """Note that this attempt has stored nothing. An earlier attempt may have."""
        if send.attempts:
            self._plan_repetition(send)
        else:
            self.workload.not_sent([send.operation])

    def _plan_repetition(self, send: _Send) -> None:
        if "idempotent" in send.ext and send.attempts < MAX_ATTEMPTS:
            self._send_to_repeat = send._replace(attempts=send.attempts + 1)

    def _draw_delay(self) -> tuple[float, str, int]:
        """Return a delay in seconds, and the property that requests it."""
        kind = self.random.randrange(3)
        if kind == 0:
            level = self.random.randrange(len(LEVELS_S))
            return LEVELS_S[level], DELAY, level + 1
        if kind == 1:
            seconds = self.random.randint(1, 20)
            return float(seconds), TIMER_DELAY_SEC, seconds
        delay_s = self.random.choice(DELAYS_S)
        return delay_s, TIMER_DELAY_MS, int(delay_s * 1000)

    def _handle_answer(self, send: _Send, answer: Answer | None) -> None:
        workload, operation, queue_id = self.workload, send.operation, send.queue_id
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            workload.counts["delayed send acknowledged"] += 1
            require(int(answer.ext["queueId"]) == queue_id, "a delayed send is answered with its queue", answer=answer)
            position = position_in(answer.ext["msgId"])
            workload.truth.due.acknowledge(operation, position)
            if (handle := answer.ext.get("recallHandle")) is not None:
                self._handles.append((operation, send.topic, handle))
            if send.attempts:
                workload.truth.happened["delayed send repeated"] += 1
        elif answer is not None and answer.code in NOT_STORED:
            workload.counts["delayed send refused"] += 1
            self._note_not_stored(send)
        else:
            workload.counts["delayed send of unknown outcome"] += 1
            self._plan_repetition(send)

    def _recall(self, operation: int, topic: str, handle: str) -> None:
        workload = self.workload
        workload.truth.due.recall(operation)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                workload.truth.due.recalled(operation, told=True)
            elif answer is None or answer.code not in {*NOT_STORED, ResponseCode.ILLEGAL_OPERATION}:
                workload.truth.due.recalled(operation, told=False)
            else:
                workload.counts[f"recall answered {answer.code}"] += 1
            self.pause()

        if not self.call(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle}, done):
            self.pause()


def check_delivered(group: SimGroup, due: DueTruth) -> None:
    """Wait until a whole group has delivered all due messages."""
    scheduler = group.scheduler
    while waiting := due.not_delivered():
        last = max(due.wanted.get(operation, 0.0) for operation in waiting)
        require(
            scheduler.now < max(last, due.checked_at) + LATE_S + group.longest_pause_s or group.clocks_jumped,
            "a message that is due is delivered",
            waiting=waiting[:5],
            last=last,
        )
        if group.clocks_jumped and scheduler.now >= last + LATE_S:
            return  # the message is due by clocks that jumped, so later
        scheduler.run_until(scheduler.now + 0.5)
    due.check_recalls()
