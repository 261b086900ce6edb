"""Producers of messages that are to be delivered later, and what the group shows of them in the end."""

from __future__ import annotations

from collections import deque
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.due import DueTruth
from dledger_sim.brokers.workload import NOT_STORED, POSITION_DIGITS, Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

DELAYS_S: Final = (0.05, 0.3, 1.0, 2.5, 7.0, 20.0)
LATE_S: Final = 10.0
"""A group that is whole again has delivered what is due after so long."""
LEVELS_S: Final = (1.0, 5.0, 10.0)
RECALL_SHARE: Final = 0.25
"""Of a client's requests, once it has something to recall."""
KEPT_HANDLES: Final = 8


class Delayer(Client):
    """Sends messages with a delay level or a time, never one that it has sent before; asks for some of them back, and
    for some of these again.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._handles: deque[tuple[int, str, str]] = deque(maxlen=KEPT_HANDLES)
        """Of the last messages: operation, topic, recall handle."""

    def act(self) -> None:
        """Send, or recall."""
        if self._handles and self.random.random() < RECALL_SHARE:
            self._recall(*self.random.choice(self._handles))
        else:
            self._send()

    def _send(self) -> None:
        workload, random = self.workload, self.random
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        topic = workload.any_topic()
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)
        delay_s, name, value = self._delay()
        ext["i"] += f"{name}\x01{value}\x02"
        workload.truth.due.ask(operation, workload.group.scheduler.now + delay_s)

        def done(answer: Answer | None) -> None:
            self._done(operation, topic, queue_id, answer)
            self.pause()

        if not self.call(code, ext, done, body=body):
            workload.not_sent([operation])
            self.pause()

    def _delay(self) -> tuple[float, str, int]:
        """A delay in seconds, and the property that asks for it."""
        kind = self.random.randrange(3)
        if kind == 0:
            level = self.random.randrange(len(LEVELS_S))
            return LEVELS_S[level], DELAY, level + 1
        if kind == 1:
            seconds = self.random.randint(1, 20)
            return float(seconds), TIMER_DELAY_SEC, seconds
        delay_s = self.random.choice(DELAYS_S)
        return delay_s, TIMER_DELAY_MS, int(delay_s * 1000)

    def _done(self, operation: int, topic: str, queue_id: int, answer: Answer | None) -> None:
        workload = self.workload
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            workload.counts["delayed send acknowledged"] += 1
            require(int(answer.ext["queueId"]) == queue_id, "a delayed send is answered with its queue", answer=answer)
            position = int(answer.ext["msgId"][-POSITION_DIGITS:], 16)
            workload.truth.due.acknowledge(operation, position)
            if (handle := answer.ext.get("recallHandle")) is not None:
                self._handles.append((operation, topic, handle))
        elif answer is not None and answer.code in NOT_STORED:
            workload.counts["delayed send refused"] += 1
            workload.not_sent([operation])
        else:
            workload.counts["delayed send of unknown outcome"] += 1

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
    """A whole group delivers what is due: wait for all of it."""
    scheduler = group.scheduler
    while waiting := due.not_delivered():
        last = max(due.wanted.get(operation, 0.0) for operation in waiting)
        require(
            scheduler.now < max(last, due.checked_at) + LATE_S + group.longest_pause_s or group.clocks_jumped,
            "what is due is delivered",
            waiting=waiting[:5],
            last=last,
        )
        if group.clocks_jumped and scheduler.now >= last + LATE_S:
            return  # it is due by clocks that say so later
        scheduler.run_until(scheduler.now + 0.5)
    due.check_recalls()
