"""Consumers that pop under a lease: they work for long, send heartbeats meanwhile, and die now and then.

A consumer that dies goes on under another client id, so nothing renews the lease of the first any more. Its messages
come again to the others. `PopTruth` checks that no leased message comes again before its lease in the log is over.
"""

from __future__ import annotations

from typing import Final

from dledger_remoting.codes import RequestCode
from dledger_remoting.headers_pop import LEASE_FIELD
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, encode_heartbeat
from dledger_remoting.pop import CheckPoint
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.poppers import Popper
from dledger_sim.brokers.workload import Workload

BEAT_SHARE: Final = 0.5
"""Share of steps in which a consumer sends a heartbeat. In the others it pops, acknowledges, leaves or dies."""
LEAVE_SHARE: Final = 0.05
DIE_SHARE: Final = 0.05
ACK_SHARE: Final = 0.5
"""Share of the remaining steps in which it acknowledges a message that it has worked on."""


class Leaser(Popper):
    """Member of one of the groups of poppers, with a lease."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._lives = 0
        self._held: list[tuple[OffsetKey, CheckPoint, int]] = []
        """Messages that it works on: place, check point and operation."""
        self._leased: list[int] = []
        """Operations of all messages that it got under its present id."""

    @property
    def _client_id(self) -> str:
        return f"{self.name}@{self._lives}"

    def act(self) -> None:
        """Send a heartbeat, finish a message, pop, leave or die."""
        chance = self.random.random()
        if chance < BEAT_SHARE:
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
        return {LEASE_FIELD: self._client_id}

    def _handle_message(self, key: OffsetKey, point: CheckPoint, operation: int) -> bool:
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
