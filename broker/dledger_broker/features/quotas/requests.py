"""Requests about quotas: set and taken back (20017), told (20018)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dledger.errors import LogError
from dledger_broker.features.quotas.admission import Admission
from dledger_broker.features.quotas.meters import Meter
from dledger_broker.features.quotas.table import QUOTAS, PutQuota, QuotaKind, QuotaOwner
from dledger_broker.kernel import rights
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, LabelledGauge, Part, Sample
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.quotas import Quota, QuotaList, QuotaRow

MAX_QUOTAS: Final = 1_000
MAX_NAME_CHARS: Final = 128
MAX_RATE: Final = 1 << 50

_LABELS: Final = ("kind", "name")


class QuotaRequests(Part):
    """Sets quotas on the leader, and tells them; `admission` is what sends ask."""

    def __init__(self, machine: BrokerMachine, requests: Requests, sends: Admission, reads: Admission) -> None:
        self.sends = sends
        self.reads = reads
        self._machine = machine
        self._requests = requests
        self._on_their_way: Counter[QuotaOwner] = Counter()

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`. Quotas are for administrators to set."""
        return {
            RequestCode.PUT_QUOTA: Route(self.put, Needs.LEADER, CHANGES),
            RequestCode.LIST_QUOTAS: Route(
                self.tell, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.GET, Action.LIST),)
            ),
        }

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (Gauge("quotas", "Quotas of accounts and topics that are set", lambda: len(self._meters)),)

    @property
    def labelled_gauges(self) -> Sequence[LabelledGauge]:
        """See `Part.labelled_gauges`."""
        return (
            LabelledGauge("quota_held", "Requests that had to wait for a quota, on this node", _LABELS, self._held),
            LabelledGauge("quota_refused", "Requests refused for a quota, on this node", _LABELS, self._refused),
        )

    def release(self) -> None:
        """See `Part.release`."""
        self.sends.release()
        self.reads.release()

    @property
    def _meters(self) -> Mapping[QuotaOwner, Meter]:
        return {**self.sends.meters(), **self.reads.meters()}

    def _held(self) -> Iterator[Sample]:
        """Of each quota, of which there are at most `MAX_QUOTAS`."""
        return ((owner, meter.held) for owner, meter in self._meters.items())

    def _refused(self) -> Iterator[Sample]:
        return ((owner, meter.refused) for owner, meter in self._meters.items())

    def put(self, request: Request) -> None:
        """20017: set the quota of an account or a topic, there or not; without any limit it is taken back."""
        asked = decode_body(Quota, request.body, "quota")
        put = PutQuota(asked.kind, asked.name, asked.messages_per_second, asked.bytes_per_second)
        _check(put)
        owner = QuotaOwner(put.kind, put.name)
        sets = bool(put.messages or put.size)
        if sets:
            self._check_room(owner)

        def done(error: LogError | None) -> None:
            if sets:
                self._arrived(owner)
            if error is None:
                request.respond()
            else:
                self._requests.fail(request, error)

        if sets:
            self._on_their_way[owner] += 1
        self._machine.stage_command(put, done)

    def _arrived(self, owner: QuotaOwner) -> None:
        self._on_their_way[owner] -= 1
        if not self._on_their_way[owner]:
            del self._on_their_way[owner]

    def _check_room(self, owner: QuotaOwner) -> None:
        """Raises `InvalidParameter`. Those that are not applied yet count: many may come at once."""
        table, on_their_way = self._machine.state.table(QUOTAS), self._on_their_way
        if len(table) + len(on_their_way) < MAX_QUOTAS or owner in on_their_way or table.get(owner) is not None:
            return
        there = len(table) + sum(table.get(other) is None for other in on_their_way)
        if there >= MAX_QUOTAS:
            raise InvalidParameter(f"there are {there} quotas, the limit is {MAX_QUOTAS}: delete some")

    def tell(self, request: Request) -> None:
        """20018: all quotas."""
        rows = [
            QuotaRow(quota.kind, quota.name, quota.messages, quota.size, meter.held, meter.refused)
            for meter in self._meters.values()
            for quota in (meter.quota,)
        ]
        self._requests.respond(request, encode_body(QuotaList(rows)))


def _check(put: PutQuota) -> None:
    """Raises `InvalidParameter`."""
    if put.kind not in tuple(QuotaKind):
        raise InvalidParameter(f"kind {put.kind[:64]!r}: expected {', '.join(QuotaKind)}")
    if not 1 <= len(put.name) <= MAX_NAME_CHARS or not put.name.isprintable():
        raise InvalidParameter(f"name {put.name[:64]!r}: expected 1 to {MAX_NAME_CHARS} characters")
    for name, rate in (("messagesPerSecond", put.messages), ("bytesPerSecond", put.size)):
        if not 0 <= rate <= MAX_RATE:
            raise InvalidParameter(f"{name} {rate} is outside 0..{MAX_RATE}")
