"""Bugs of quotas."""

from __future__ import annotations

from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.quotas.table import PutQuota, QuotaOwner, QuotaTable
from dledger_broker.kernel.requests import Request
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("quotas")

_takes = Admission.takes


def _take_what_is_held(self: Admission, request: Request, topic: str, messages: int, size: int) -> bool:
    _takes(self, request, topic, messages, size)
    return True


CATALOGUE.add(
    "held-send-is-stored-at-once",
    "of a send that waits for a quota nothing is stored before it goes on",
    (Admission, "takes", _take_what_is_held),
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
