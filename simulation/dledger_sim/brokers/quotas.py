"""Administrators who set quotas of topics and accounts (20017), and query them (20018). With their judge.

Producers and consumers exceed the quotas. A refused send is judged like every other send that was not stored. Consumers
must find all kept messages, after any wait (`quota_waits`).
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.quotas.table import PutQuota, QuotaKind, QuotaOwner
from dledger_remoting.accounts import ROOT
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.quotas import Quota, QuotaList
from dledger_sim.brokers.account_truth import ACCOUNTS
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.setters import Setter

_NO_LIMIT: Final = 1 << 40
"""Bytes per second that no client sends. A number above it identifies a change."""


class QuotaSetter(Setter):
    """Administrator who sets quotas of a few messages per second, removes them, and queries all."""

    def act(self) -> None:
        """Set a quota, remove a quota, or query all."""
        if self.random.random() < 0.5:
            self.ask(RequestCode.LIST_QUOTAS, self._judge_list)
        else:
            self._put_quota()

    def _put_quota(self) -> None:
        truth = self.workload.truth
        kind, name = QuotaKind.TOPIC, self.random.choice([*self.workload.passing, *sorted(self.workload.lasting)])
        if self.workload.brokers.access and self.random.random() < 0.5:
            kind, name = QuotaKind.ACCOUNT, self.random.choice(ACCOUNTS)
        if self.random.random() < 0.4:
            # All readers sign for this account.
            of_account = kind is QuotaKind.ACCOUNT
            kind, name = (QuotaKind.ACCOUNT_READS, ROOT) if of_account else (QuotaKind.TOPIC_READS, name)
        is_none = self.random.random() < 0.3
        size = 0 if is_none else _NO_LIMIT + self.next_number()
        put = PutQuota(kind, name, 0 if is_none else self.random.choice((1, 2, 5)), size)
        history = truth.expected.quotas[QuotaOwner(kind, name)]

        def done(answer: Answer) -> None:
            kept = put if put.size else None
            self.require_known(history, kept, answer, "a quota is set once it is applied", name=name)
            self.workload.counts["quota set"] += 1

        body = encode_body(Quota(kind, name, put.messages, put.size))
        self.change(RequestCode.PUT_QUOTA, ("quota", put), done, ext={}, body=body)

    def _judge_list(self, answer: Answer) -> None:
        rows = decode_body(QuotaList, answer.body, "quotas").quotas
        found = {
            QuotaOwner(row.kind, row.name): PutQuota(row.kind, row.name, row.messages_per_second, row.bytes_per_second)
            for row in rows
        }
        quotas = self.workload.truth.expected.quotas
        for owner in {*found, *quotas}:
            promise = "a quota is shown as it was last set"
            self.require_known(quotas[owner], found.get(owner), answer, promise, owner=owner)
        self.workload.counts["quotas told"] += 1
