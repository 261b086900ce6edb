"""Administrators who set quotas of topics (20017), and ask what is set (20018). And their judge.

Producers send beyond them: what they are refused is judged as every other send that was not stored.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.quotas.table import PutQuota, QuotaKind, QuotaOwner
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.quotas import Quota, QuotaList
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.tenants import NOT_DONE
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.invariants import require

_NO_LIMIT: Final = 1 << 40
"""Bytes a second that nobody sends; a number above it tells one change from another."""


class QuotaSetter(Client):
    """Sets quotas of a few messages a second, takes them back, and asks for them all."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._numbers = 0

    def act(self) -> None:
        """Set a quota, take one back, or ask."""
        if self.random.random() < 0.5:
            self._ask()
        else:
            self._put()

    def _put(self) -> None:
        self._numbers += 1
        topic = self.random.choice([*self.workload.passing, *sorted(self.workload.lasting)])
        is_none = self.random.random() < 0.3
        size = 0 if is_none else _NO_LIMIT + 1_000 * self._numbers + self.number
        put = PutQuota(QuotaKind.TOPIC, topic, 0 if is_none else self.random.choice((1, 2, 5)), size)
        expected, change = self.workload.truth.expected, ("quota", put)
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                kept = put if put.size else None
                self._require(QuotaOwner(put.kind, topic), kept, answer, "a quota is set once it is applied")
                self.workload.counts["quota set"] += 1
            elif answer is not None and answer.code in NOT_DONE:
                expected.refuse(change)
            self.pause()

        body = encode_body(Quota(put.kind, topic, put.messages, put.size))
        if not self.call(RequestCode.PUT_QUOTA, {}, done, body=body):
            expected.refuse(change)
            self.pause()

    def _ask(self) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._told(answer)
            self.pause()

        if not self.call(RequestCode.LIST_QUOTAS, {}, done):
            self.pause()

    def _told(self, answer: Answer) -> None:
        rows = decode_body(QuotaList, answer.body, "quotas").quotas
        found = {
            QuotaOwner(row.kind, row.name): PutQuota(row.kind, row.name, row.messages_per_second, row.bytes_per_second)
            for row in rows
        }
        for owner in {*found, *self.workload.truth.expected.quotas}:
            self._require(owner, found.get(owner), answer, "a quota is told as it was set last")
        self.workload.counts["quotas told"] += 1

    def _require(self, owner: QuotaOwner, found: PutQuota | None, answer: Answer, promise: str) -> None:
        if answer.seen is None:
            return
        history = self.workload.truth.expected.quotas[owner]
        known = history.during(answer.seen.asked_at, self.workload.group.scheduler.now)
        require(found in known, promise, owner=owner, found=found, known=known)
