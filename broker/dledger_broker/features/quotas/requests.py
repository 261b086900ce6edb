"""Requests about quotas: set and deleted (20017), listed (20018)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dledger.errors import LogError
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.quotas.meters import Meter
from dledger_broker.features.quotas.table import QUOTAS, PutQuota, QuotaKind, QuotaOwner
from dledger_broker.kernel import rights
from dledger_broker.kernel.audit import SubjectState
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
    """Handler of requests that set or list quotas, on the leader. `sends` and `reads` admit sends and reads."""

    def __init__(self, machine: BrokerMachine, requests: Requests, sends: QuotaGate, reads: QuotaGate) -> None:
        self.sends = sends
        self.reads = reads
        self._machine = machine
        self._requests = requests
        self._in_flight: Counter[QuotaOwner] = Counter()

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes of the requests. Only administrators may set quotas."""
        return {
            RequestCode.PUT_QUOTA: Route(self.put, Needs.LEADER, CHANGES),
            RequestCode.LIST_QUOTAS: Route(
                self.tell, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.GET, Action.LIST),)
            ),
        }

    @property
    def audited(self) -> Mapping[int, SubjectState]:
        return {RequestCode.PUT_QUOTA: self._quota_state}

    def _quota_state(self, request: Request) -> object:
        body = decode_body(Quota, request.body)
        quota = self._machine.state.table(QUOTAS).get(QuotaOwner(body.kind, body.name))
        return {f"{body.kind} {body.name}": None if quota is None else [quota.messages, quota.size]}

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("quotas", "Quotas of accounts and topics that are set", lambda: len(self._meters)),)

    @property
    def labelled_gauges(self) -> Sequence[LabelledGauge]:
        return (
            LabelledGauge("quota_held", "Requests that had to wait for a quota, on this node", _LABELS, self._held),
            LabelledGauge("quota_refused", "Requests refused for a quota, on this node", _LABELS, self._refused),
        )

    def leader_changed(self) -> None:
        self.sends.leader_changed()
        self.reads.leader_changed()

    def name_made(self, account: str, messages: int, size: int) -> None:
        self.sends.charge_account(account, messages, size)

    def release(self) -> None:
        self.sends.release()
        self.reads.release()

    @property
    def _meters(self) -> Mapping[QuotaOwner, Meter]:
        return {**self.sends.meters(), **self.reads.meters()}

    def _held(self) -> Iterator[Sample]:
        """Return how many requests each quota held. At most `MAX_QUOTAS` quotas keep the number of samples small."""
        return ((owner, meter.held) for owner, meter in self._meters.items())

    def _refused(self) -> Iterator[Sample]:
        return ((owner, meter.refused) for owner, meter in self._meters.items())

    def put(self, request: Request) -> None:
        """Set the quota of an account or a topic, which need not exist (20017).

        A quota without any limit is deleted.
        """
        body = decode_body(Quota, request.body, "quota")
        put = PutQuota(body.kind, body.name, body.messages_per_second, body.bytes_per_second)
        _check(put)
        owner = QuotaOwner(put.kind, put.name)
        sets = bool(put.messages or put.size)
        if sets:
            self._check_room(owner)

        def done(error: LogError | None) -> None:
            if sets:
                self._on_settled(owner)
            if error is None:
                request.respond()
            else:
                self._requests.fail(request, error)

        if sets:
            self._in_flight[owner] += 1
        self._machine.stage_command(put, done)

    def _on_settled(self, owner: QuotaOwner) -> None:
        self._in_flight[owner] -= 1
        if not self._in_flight[owner]:
            del self._in_flight[owner]

    def _check_room(self, owner: QuotaOwner) -> None:
        """Raise `InvalidParameter` if there are too many quotas.

        Those in flight count, because many may arrive at once.
        """
        table, in_flight = self._machine.state.table(QUOTAS), self._in_flight
        if len(table) + len(in_flight) < MAX_QUOTAS or owner in in_flight or table.get(owner) is not None:
            return
        total = len(table) + sum(table.get(proposed) is None for proposed in in_flight)
        if total >= MAX_QUOTAS:
            raise InvalidParameter(f"there are {total} quotas, the limit is {MAX_QUOTAS}: delete some")

    def tell(self, request: Request) -> None:
        """Answer with all quotas (20018)."""
        rows = [
            QuotaRow(quota.kind, quota.name, quota.messages, quota.size, meter.held, meter.refused)
            for meter in self._meters.values()
            for quota in (meter.quota,)
        ]
        self._requests.respond(request, encode_body(QuotaList(rows)))


def _check(put: PutQuota) -> None:
    """Raise `InvalidParameter` if a kind, name or rate is invalid."""
    if put.kind not in tuple(QuotaKind):
        raise InvalidParameter(f"kind {put.kind[:64]!r}: expected {', '.join(QuotaKind)}")
    if not 1 <= len(put.name) <= MAX_NAME_CHARS or not put.name.isprintable():
        raise InvalidParameter(f"name {put.name[:64]!r}: expected 1 to {MAX_NAME_CHARS} characters")
    for name, rate in (("messagesPerSecond", put.messages), ("bytesPerSecond", put.size)):
        if not 0 <= rate <= MAX_RATE:
            raise InvalidParameter(f"{name} {rate} is outside 0..{MAX_RATE}")
