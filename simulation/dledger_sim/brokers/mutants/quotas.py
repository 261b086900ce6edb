"""Bugs of quotas."""

from __future__ import annotations

from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.quotas.table import PutQuota, QuotaOwner, QuotaTable
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode
from dledger_sim.brokers.schedules import quotas
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("quotas")

_takes = Admission.takes


def _take_what_is_held(
    self: Admission, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0
) -> bool:
    return _takes(self, request, topic, messages, size, polls_s) or self._scope.is_measured_first


CATALOGUE.add(
    "held-send-is-stored-at-once",
    "of a send that waits for a quota nothing is stored before it goes on",
    (Admission, "takes", _take_what_is_held),
)


def _take_anew(self: Admission, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0) -> bool:
    return _takes(self, request, topic, messages, size, polls_s + 60.0)


CATALOGUE.add(
    "read-waits-anew-at-each-leader",
    "a read waits for quotas no longer than its client expects, leaders before this one counted",
    (Admission, "takes", _take_anew),
    schedule=quotas.read_that_two_leaders_hold,
)


def _forget_reads(self: Admission) -> None:
    for meter in self._meters.values():
        for held in meter.all():
            if held.request.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                self._requests.run(held.request)


CATALOGUE.add(
    "held-reads-forgotten-at-step-down",
    "who waits for a quota is answered, also when another node leads",
    (Admission, "_handle_again", _forget_reads),
)


def _put_only(self: QuotaTable, put: PutQuota) -> None:
    self.changes += 1
    if put.messages or put.size:
        self._quotas[QuotaOwner(put.kind, put.name)] = put


CATALOGUE.add(
    "quota-cannot-be-taken-back",
    "a quota counts until another one is set, or it is taken back",
    (QuotaTable, "_put", _put_only),
)
CATALOGUE.add(
    "quotas-not-in-snapshots",
    "a restart forgets no quota",
    (QuotaTable, "capture_frames", lambda _self, _now: {}),
)
