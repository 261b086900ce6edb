"""Consumers that pop under a lease: they work for long, send heartbeats meanwhile, and die now and then.

A consumer that dies goes on under another client id, so nothing renews the lease of the first any more. Its messages
come again to the others. `PopTruth` checks that no leased message comes again before its lease in the log is over.

Two of three confirm what they have, as a proxy does for them. The proxy dies between the answer to a pop and the
consumer now and then. The consumer lives on, does not have these messages, and confirms nothing. `PopTruth` checks that
no lease begins without a confirmation.
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers_pop import CONFIRMS_FIELD, LEASE_FIELD, UNCONFIRMED
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from dledger_remoting.pop import CheckPoint, deliveries_info, pop_retry_topic
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.poppers import GROUPS, Popper
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

BEAT_SHARE: Final = 0.5
"""Share of steps in which a consumer sends a heartbeat. In the others it pops, acknowledges, leaves or dies."""
LEAVE_SHARE: Final = 0.05
DIE_SHARE: Final = 0.05
ACK_SHARE: Final = 0.5
"""Share of the remaining steps in which it acknowledges a message that it has worked on."""


CONFIRMING_OF_THREE: Final = 2
"""Number of consumers of three that confirm what they have. The others get their leases with the pop."""
LOST_SHARE: Final = 0.2
"""Share of answers to pops that do not reach a consumer that confirms."""
LATE_SHARE: Final = 0.25
"""Share of confirmations that are sent a few steps later."""
TWICE_SHARE: Final = 0.2
"""Share of confirmations that are sent twice."""


class Leaser(Popper):
    """Member of one of the groups of poppers, with a lease."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._lives = 0
        self._held: list[tuple[OffsetKey, CheckPoint, int]] = []
        """Messages that it works on: place, check point and operation."""
        self._leased: list[int] = []
        """Operations of all messages that it got under its present id."""
        self._confirms = number // len(GROUPS) % 3 < CONFIRMING_OF_THREE
        self._is_lost = False
        self._had: list[CheckPoint] = []
        """Check points of the messages of the present answer."""
        self._late: list[dict[str, str]] = []
        """Confirmations that are still to be sent."""

    @property
    def _client_id(self) -> str:
        return f"{self.name}@{self._lives}"

    def act(self) -> None:
        """Send a heartbeat, finish a message, pop, leave or die."""
        chance = self.random.random()
        if self._late and self.random.random() < LATE_SHARE:
            self._requests_left = 1
            self._confirm(self._late.pop())
            self._finish_request()
        elif chance < BEAT_SHARE:
            self._beat()
        elif chance < BEAT_SHARE + DIE_SHARE:
            self._begin_anew()
        elif chance < BEAT_SHARE + DIE_SHARE + LEAVE_SHARE:
            self._leave()
        elif self._held and self.random.random() < ACK_SHARE:
            self._requests_left = 1
            self._acknowledge(*self._held.pop(self.random.randrange(len(self._held))))
            self._finish_request()
        else:
            self._pop()

    def _extra_fields(self) -> dict[str, str]:
        if not self._confirms:
            return {LEASE_FIELD: self._client_id}
        self.workload.truth.pops.confirming.add(self._client_id)
        return {LEASE_FIELD: self._client_id, CONFIRMS_FIELD: "true"}

    def _handle_popped(self, topic: str, sent_at: float, answer: Answer | None) -> None:
        self._is_lost = self._confirms and self.random.random() < LOST_SHARE
        self._had.clear()
        is_found = answer is not None and answer.code == ResponseCode.SUCCESS
        if answer is not None and is_found and self._confirms:
            told = answer.ext[LEASE_FIELD]
            require(told == UNCONFIRMED, "a pop whose lease begins later is told so", told=told)
        super()._handle_popped(topic, sent_at, answer)

    def _end_answer(self, topic: str) -> None:
        """Confirm the messages of an answer, at once, later, or never because they did not arrive."""
        if not self._had:
            return
        truth = self.workload.truth.pops
        rows = dict.fromkeys((point.retry, point.queue_id, point.pop_time_ms) for point in self._had)
        for retry, queue_id, pop_time_ms in rows:
            key = (self.group_name, pop_retry_topic(self.group_name, topic, retry), queue_id)
            truth.confirm_asked.add((key, pop_time_ms))
        ext = {
            "consumerGroup": self.group_name,
            "topic": topic,
            "clientId": self._client_id,
            "invisibleTime": str(max(point.invisible_ms for point in self._had)),
            "deliveries": deliveries_info(rows),
        }
        if self.random.random() < LATE_SHARE:
            self._late.append(ext)
        else:
            self._confirm(ext)
        if self.random.random() < TWICE_SHARE:
            self._confirm(ext)

    def _confirm(self, ext: dict[str, str]) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.counts[f"confirmation answered {answer.code}"] += 1
            self._finish_request()

        if self.call(RequestCode.CONFIRM_LEASE, dict(ext), done):
            self._requests_left += 1

    def _handle_message(self, key: OffsetKey, point: CheckPoint, operation: int) -> bool:
        if self._is_lost:
            self.workload.counts["message lost with its proxy"] += 1
            return True
        if self._confirms:
            self._had.append(point)
        self._held.append((key, point, operation))
        self._leased.append(operation)
        return True

    def _beat(self) -> None:
        body = encode_heartbeat(HeartbeatData(self._client_id, [], [ConsumerData(self.group_name)]))
        if not self.call(RequestCode.HEART_BEAT, {}, self._answered, body=body):
            self.pause()

    def _leave(self) -> None:
        ext = {"clientID": self._client_id, "consumerGroup": self.group_name}
        for operation in self._leased:  # they may come again from now on
            self.workload.pops.hiding(self.group_name, operation, self.workload.group.scheduler.now, 0)
        self._begin_anew_quietly()
        if not self.call(RequestCode.UNREGISTER_CLIENT, ext, self._answered):
            self.pause()

    def _answered(self, answer: Answer | None) -> None:
        self.workload.counts["leaser answered" if answer is not None else "leaser not answered"] += 1
        self.pause()

    def _begin_anew(self) -> None:
        self._begin_anew_quietly()
        self.pause()

    def _begin_anew_quietly(self) -> None:
        self._lives += 1
        self._held.clear()
        self._leased.clear()
        self._late.clear()
