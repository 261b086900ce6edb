"""Administrators who set quotas of topics and accounts (20017), and ask what is set (20018). And their judge.

Producers send beyond them, and consumers read: what they are refused is judged as every other send that was not stored,
and consumers have to find all that is kept, however long they had to wait (`quota_waits`).
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.quotas.table import PutQuota, QuotaKind, QuotaOwner
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.quotas import Quota, QuotaList
from dledger_remoting.root_account import ROOT
from dledger_sim.brokers.account_truth import ACCOUNTS
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.setters import Setter

_NO_LIMIT: Final = 1 << 40
"""Bytes a second that nobody sends; a number above it tells one change from another."""


class QuotaSetter(Setter):
    """Sets quotas of a few messages a second, takes them back, and asks for them all."""

    def act(self) -> None:
        """Set a quota, take one back, or ask."""
        if self.random.random() < 0.5:
            self.ask(RequestCode.LIST_QUOTAS, self._told)
        else:
            self._put()

    def _put(self) -> None:
        truth = self.workload.truth
        kind, name = QuotaKind.TOPIC, self.random.choice([*self.workload.passing, *sorted(self.workload.lasting)])
        if self.workload.brokers.access and self.random.random() < 0.5:
            kind, name = QuotaKind.ACCOUNT, self.random.choice(ACCOUNTS)
        if self.random.random() < 0.4:
            # Everybody who reads signs for this account.
            of_account = kind is QuotaKind.ACCOUNT
            kind, name = (QuotaKind.ACCOUNT_READS, ROOT) if of_account else (QuotaKind.TOPIC_READS, name)
        is_none = self.random.random() < 0.3
        size = 0 if is_none else _NO_LIMIT + self.next_number()
        put = PutQuota(kind, name, 0 if is_none else self.random.choice((1, 2, 5)), size)
        history = truth.expected.quotas[QuotaOwner(kind, name)]

        def told(answer: Answer) -> None:
            kept = put if put.size else None
            self.require_known(history, kept, answer, "a quota is set once it is applied", name=name)
            self.workload.counts["quota set"] += 1

        body = encode_body(Quota(kind, name, put.messages, put.size))
        self.change(RequestCode.PUT_QUOTA, ("quota", put), told, ext={}, body=body)

    def _told(self, answer: Answer) -> None:
        rows = decode_body(QuotaList, answer.body, "quotas").quotas
        found = {
            QuotaOwner(row.kind, row.name): PutQuota(row.kind, row.name, row.messages_per_second, row.bytes_per_second)
            for row in rows
        }
        quotas = self.workload.truth.expected.quotas
        for owner in {*found, *quotas}:
            promise = "a quota is told as it was set last"
            self.require_known(quotas[owner], found.get(owner), answer, promise, owner=owner)
        self.workload.counts["quotas told"] += 1
