"""Producers of messages that are to be delivered later, and what the group shows of them in the end."""

from __future__ import annotations

from typing import Final

from dledger_remoting.codes import ResponseCode
from dledger_remoting.properties import DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.due import DueTruth
from dledger_sim.brokers.workload import NOT_STORED, POSITION_DIGITS
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

DELAYS_S: Final = (0.05, 0.3, 1.0, 2.5, 7.0, 20.0)
LATE_S: Final = 10.0
"""A group that is whole again has delivered what is due after so long."""
LEVELS_S: Final = (1.0, 5.0, 10.0)


class Delayer(Client):
    """Sends messages with a delay level or a time; never one that it has sent before."""

    def act(self) -> None:
        """Send."""
        workload, random = self.workload, self.random
        operation, queue_id = workload.next_operation(), random.randrange(workload.settings.queues)
        code, ext, body = workload.make_send(workload.any_topic(), queue_id, [operation], batch=False)
        delay_s, name, value = self._delay()
        ext["i"] += f"{name}\x01{value}\x02"
        workload.truth.due.ask(operation, workload.group.scheduler.now + delay_s)

        def done(answer: Answer | None) -> None:
            self._done(operation, queue_id, answer)
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

    def _done(self, operation: int, queue_id: int, answer: Answer | None) -> None:
        workload = self.workload
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            workload.counts["delayed send acknowledged"] += 1
            require(int(answer.ext["queueId"]) == queue_id, "a delayed send is answered with its queue", answer=answer)
            position = int(answer.ext["msgId"][-POSITION_DIGITS:], 16)
            workload.truth.due.acknowledge(operation, position)
        elif answer is not None and answer.code in NOT_STORED:
            workload.counts["delayed send refused"] += 1
            workload.not_sent([operation])
        else:
            workload.counts["delayed send of unknown outcome"] += 1


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
