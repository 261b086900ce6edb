"""Gate of sends and of reads: a request beyond a quota waits until there is room, or is refused.

No part of a waiting request has been done. When the request proceeds, it is handled from the start, because its topic,
account or leader may have changed. A send is charged to its quotas once, when it proceeds. A read is charged when it is
answered, because only then its size is known. Reads behind it then find less room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple

from dledger.environment import Environment
from dledger_broker.features.quotas.meters import HeldSend, Meter
from dledger_broker.features.quotas.table import QUOTAS, PutQuota, QuotaKind, QuotaOwner, QuotaTable
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import SystemBusy

HOLD_S: Final = 1.0
"""Maximum time for which a send waits at one leader. Stock clients give up after 3 s."""
MAX_AGE_S: Final = 2.5
"""Maximum total wait of a send, across all leaders and quotas."""
TICK_S: Final = 0.02
"""Interval at which waiting requests are checked."""
READ_HOLD_S: Final = 3.0
"""Maximum time for which a read waits for a quota, across all leaders.

Stock clients give up after 10 s at the earliest, and ours after 5 s. Both add the time for which they ask to wait for
messages.
"""
MAX_HELD: Final = 256
"""Maximum number of requests that wait for one quota. A further request is refused at once."""
MAX_HELD_BYTES: Final = 8 << 20
"""Maximum size of the requests that wait for one quota, not counting the last."""
MAX_ALL_HELD_BYTES: Final = 128 << 20
"""Maximum size of the requests that wait for all quotas, not counting the last of each."""
MAX_UNMEASURED: Final = 8
"""Maximum number of reads of a quota that proceed at a tick before their size is known. These reads need the disk, or
wait for messages.
"""


class Scope(NamedTuple):
    """Kind of request that is admitted: its quotas, and its waiting times.

    `hold_s` is the maximum wait at a leader, and `max_age_s` the maximum age at which a request still waits. `advice`
    is part of the refusal.
    """

    account: QuotaKind
    topic: QuotaKind
    hold_s: float
    max_age_s: float
    advice: str
    is_measured_first: bool
    """True if the size of a request is known before it proceeds."""


SENDS: Final = Scope(
    QuotaKind.ACCOUNT,
    QuotaKind.TOPIC,
    HOLD_S,
    MAX_AGE_S,
    "this request stored nothing, send again later, and more slowly",
    is_measured_first=True,
)
READS: Final = Scope(
    QuotaKind.ACCOUNT_READS,
    QuotaKind.TOPIC_READS,
    READ_HOLD_S,
    READ_HOLD_S,
    "this request read nothing, ask again later",
    is_measured_first=False,
)


class QuotaGate:
    """Meters of the quotas of `scope` on a node. Each new leader begins with full meters."""

    def __init__(
        self, machine: BrokerMachine, env: Environment, group: LeadershipView, requests: Requests, scope: Scope = SENDS
    ) -> None:
        self._scope = scope
        self._env = env
        self._group = group
        self._requests = requests
        self._meters: dict[QuotaOwner, Meter] = {}
        """Meters by owner. The meter of a deleted quota stays while requests wait there."""
        self._arrival_numbers = count()
        self._limits_accounts = False
        self._table_changes = -1
        self._ticking = False
        self._accepts_waiting = True
        self._charged_reads = 0
        """Number of reads that were charged."""
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table: QuotaTable = state.table(QUOTAS)
        self._table_changes = -1

    def limits(self, topics: Iterable[str]) -> bool:
        """Return whether requests for these topics may be limited. Callers check this once for many requests."""
        meters = self._meters if self._table.changes == self._table_changes else self._current_meters()
        return bool(meters) and (
            self._limits_accounts or any(QuotaOwner(self._scope.topic, topic) in meters for topic in topics)
        )

    def admits(self, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0) -> bool:
        """Return whether a request proceeds. If not, it waits or was refused. `size` is in bytes.

        The request's client expects a wait of `polls_s` for messages in addition.
        """
        if request.within_quotas or not self._current_meters():
            return True
        meters = self._meters_of(request.account, topic)
        if not meters:
            return True
        now = self._env.now()
        blocking = self._find_blocking(meters, now)
        if blocking is None:
            _admit(request, meters, messages, size)
            return True
        if self._is_full(blocking) and not self._scope.is_measured_first:
            for held in blocking.take_disconnected():
                self._refuse(blocking, held.request, now)
        # The age of a request travels with it to the next leader, but the time that it has waited for quotas does not.
        # Without the second limit, a read could wait the full time at each leader, after its client has given up.
        deadline = min(now + self._scope.hold_s, request.received + polls_s + self._scope.max_age_s)
        if self._is_full(blocking) or (deadline <= now and not blocking.is_deleted):
            self._refuse(blocking, request, now)
        else:
            blocking.held += 1
            held_bytes = len(request.header) + len(request.body)
            blocking.wait(HeldSend(next(self._arrival_numbers), request, topic, messages, size, held_bytes, deadline))
            self._tick_later()
        return False

    def _find_blocking(self, meters: Iterable[Meter], now: float) -> Meter | None:
        """Return the first of some meters through which nothing may go now, or None.

        Earlier sends go first. Reads do not wait for earlier reads. A read that finds nothing uses nothing, so reads
        would wait behind each other for ever, for a quota that is not used.
        """
        is_ordered = self._scope.is_measured_first
        return next((meter for meter in meters if (is_ordered and meter.waiting) or meter.is_used_up(now)), None)

    def admits_again(self, request: Request, topic: str, polls_s: float) -> bool:
        """Decide as `admits` does for a read that waited for messages and finds some.

        Others may have used the quota meanwhile.
        """
        request.within_quotas = False
        return self.admits(request, topic, 0, 0, polls_s)

    def charge(self, request: Request, topic: str, messages: int, size: int) -> None:
        """Charge a read for the messages that it is answered with."""
        self._charged_reads += 1
        if self._current_meters():
            for meter in self._meters_of(request.account, topic):
                meter.take(messages, size)

    def charge_account(self, account: str, messages: int, size: int) -> None:
        """Charge an account for messages that the broker itself has stored for it.

        Its next sends wait until that is paid.
        """
        meter = self._current_meters().get(QuotaOwner(self._scope.account, account))
        if meter is not None:
            meter.take(messages, size)

    def release(self) -> None:
        """Let all waiting requests proceed, and hold no further requests, because this node stops or leaves its group's
        route.
        """
        self._stage_gathered()
        self._accepts_waiting = False
        self._handle_waiting()

    # ---------------------------------------------------------------- meters

    def meters(self) -> Mapping[QuotaOwner, Meter]:
        """Return the meters of all quotas that are set."""
        return {owner: meter for owner, meter in self._current_meters().items() if not meter.is_deleted}

    def _current_meters(self) -> dict[QuotaOwner, Meter]:
        table = self._table
        if table.changes != self._table_changes:
            self._table_changes = table.changes
            self._update_meters(table)
        return self._meters

    def _update_meters(self, table: QuotaTable) -> None:
        """Follow changes of the quotas. A deleted quota with waiting requests stays until all of them have gone on.

        Later requests wait behind them, so that the order is kept.
        """
        now, former, meters = self._env.now(), self._meters, dict[QuotaOwner, Meter]()
        for quota in table.rows():
            if quota.kind not in (self._scope.account, self._scope.topic):
                continue
            owner = QuotaOwner(quota.kind, quota.name)
            meter = former.pop(owner) if owner in former else Meter(quota, now)
            if meter.quota != quota:
                meter.change(quota, now)
            meters[owner] = meter
        for owner, meter in former.items():
            if meter.waiting:
                meter.change(PutQuota(owner.kind, owner.name), now)
                meters[owner] = meter
                self._env.call_soon(self._release_ready)
        self._meters = meters
        self._limits_accounts = any(owner.kind == self._scope.account for owner in meters)

    def _meters_of(self, account: str, topic: str) -> list[Meter]:
        owners = (QuotaOwner(self._scope.account, account), QuotaOwner(self._scope.topic, topic))
        return [meter for owner in owners if (meter := self._current_meters().get(owner)) is not None]

    def _is_full(self, meter: Meter) -> bool:
        """Return whether another request may not wait. For a deleted quota, no request waits longer than this turn."""
        if meter.is_deleted:
            return False
        return (
            not self._accepts_waiting
            or len(meter.waiting) >= MAX_HELD
            or meter.waiting_bytes >= MAX_HELD_BYTES
            or sum(other.waiting_bytes for other in self._meters.values()) >= MAX_ALL_HELD_BYTES
        )

    # ---------------------------------------------------------------- waiting requests

    def _tick_later(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._env.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._release_ready()
        if any(meter.waiting for meter in self._meters.values()):
            self._tick_later()

    def _release_ready(self) -> None:
        """Let requests proceed where there is room, and refuse requests that have waited long enough."""
        self._stage_gathered()
        now = self._env.now()
        for meter in list(self._current_meters().values()):
            self._release_from(meter, now)
            for send in meter.take_overdue(now):
                self._refuse(meter, send.request, now)
        self._drop_deleted()

    def _stage_gathered(self) -> None:
        """Have newer sends call `admits` before waiting sends proceed.

        They are gathered until they are staged. They would find no send waiting then, and would be stored before
        earlier sends.
        """
        if self._scope.is_measured_first:
            for stage in self._group.events.sends_go_on:
                stage()

    def _release_from(self, meter: Meter, now: float) -> None:
        """Let requests proceed while there is room, in the order of their waits, longest first.

        Most reads are answered and charged at once. The size of other reads is known only some turns later, and until
        then all waiting reads would proceed. So only `MAX_UNMEASURED` of them proceed per tick. A single read per tick
        would be too few, because reads behind a read that waits for messages would wait, too.
        """
        unmeasured = 0
        while meter.waiting and not meter.is_used_up(now):
            send = meter.take_next()
            if not self._scope.is_measured_first and not send.request.origin.is_open:
                self._refuse(meter, send.request, now)  # A pop without a client would hide messages that nobody gets.
                continue
            meters = self._meters_of(send.request.account, send.topic)
            blocking = self._find_blocking([other for other in meters if other is not meter], now)
            if blocking is None:
                charged_before = self._charged_reads
                _admit(send.request, meters, send.messages, send.size)
                self._requests.run(send.request)
                unmeasured += not self._scope.is_measured_first and self._charged_reads == charged_before
                if unmeasured == MAX_UNMEASURED and not meter.is_deleted:
                    return
            elif self._is_full(blocking):
                self._refuse(blocking, send.request, now)
            else:
                blocking.wait(send)

    def _drop_deleted(self) -> None:
        for owner in [owner for owner, meter in self._meters.items() if meter.is_deleted and not meter.waiting]:
            del self._meters[owner]

    def _refuse(self, meter: Meter, request: Request, now: float) -> None:
        meter.refused += 1
        self._requests.fail(request, SystemBusy(f"{meter.refusal(now)}: {self._scope.advice}"))

    def leader_changed(self) -> None:
        """Hand waiting requests to the new leader, which uses its own meters.

        This node's meters are full when it leads again.
        """
        if not self._group.ready:
            self._handle_waiting()
            now = self._env.now()
            for meter in self._meters.values():
                meter.fill(now)

    def _handle_waiting(self) -> None:
        sends = sorted(send for meter in self._meters.values() for send in meter.take_all())
        self._drop_deleted()
        for send in sends:
            self._requests.run(send.request)


def _admit(request: Request, meters: Iterable[Meter], messages: int, size: int) -> None:
    request.within_quotas = True
    for meter in meters:
        meter.take(messages, size)
