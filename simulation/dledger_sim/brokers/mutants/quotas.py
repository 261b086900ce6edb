"""Bugs of quotas."""

from __future__ import annotations

from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.quotas.table import PutQuota, QuotaOwner, QuotaTable
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode
from dledger_sim.brokers.schedules import quotas
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("quotas")

_real_admits = QuotaGate.admits


def _take_what_is_held(
    self: QuotaGate, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0
) -> bool:
    return _real_admits(self, request, topic, messages, size, polls_s) or self._scope.is_measured_first


CATALOGUE.add(
    "held-send-is-stored-at-once",
    "a send that waits for a quota stores nothing before it goes on",
    (QuotaGate, "admits", _take_what_is_held),
)


def _take_anew(self: QuotaGate, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0) -> bool:
    return _real_admits(self, request, topic, messages, size, polls_s + 60.0)


CATALOGUE.add(
    "read-waits-anew-at-each-leader",
    "a read waits for quotas no longer than its client expects, including its waits at earlier leaders",
    (QuotaGate, "admits", _take_anew),
    schedule=quotas.read_that_two_leaders_hold,
)


def _forget_reads(self: QuotaGate) -> None:
    for meter in self._meters.values():
        for held in meter.take_all():
            if held.request.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                self._requests.run(held.request)


CATALOGUE.add(
    "held-reads-forgotten-at-step-down",
    "a client that waits for a quota is answered, also if another node becomes leader",
    (QuotaGate, "_handle_waiting", _forget_reads),
)


def _put_only(self: QuotaTable, put: PutQuota) -> None:
    self.changes += 1
    if put.messages or put.size:
        self._quotas[QuotaOwner(put.kind, put.name)] = put


CATALOGUE.add(
    "quota-cannot-be-taken-back",
    "a quota counts until another quota replaces it, or it is deleted",
    (QuotaTable, "_put", _put_only),
)
CATALOGUE.add(
    "quotas-not-in-snapshots",
    "a restart forgets no quota",
    (QuotaTable, "capture_frames", lambda _self, _now: {}),
)
