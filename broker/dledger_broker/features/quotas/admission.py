"""Admission of sends and of reads: those beyond a quota wait until there is room for them, or are refused.

Nothing of a request that waits has been done. It is handled from the start when it goes on, by then of another topic,
account or leader perhaps. A send's quotas are used once, when it goes on. What a read brings is known once it is
answered, and is missing to those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple

from dledger.environment import Environment
from dledger_broker.features.quotas.meters import HeldSend, Meter
from dledger_broker.features.quotas.table import QUOTAS, PutQuota, QuotaKind, QuotaOwner, QuotaTable
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.errors import SystemBusy

HOLD_S: Final = 1.0
"""No send waits longer at one leader. Stock clients give up after 3 s."""
IN_ALL_S: Final = 2.5
"""After so long none waits, at whichever leaders it has waited, and for one."""
TICK_S: Final = 0.02
"""How often is looked whether those that wait may go on."""
READ_HOLD_S: Final = 3.0
"""No read waits longer for a quota, at all leaders together. Stock clients give up after 10 s at the soonest, ours
after 5 s, beside the time for which they ask to wait for messages.
"""
MAX_HELD: Final = 256
"""Requests that wait for one quota; one more is refused at once."""
MAX_HELD_BYTES: Final = 8 << 20
"""Bytes of them, but for the last one."""
MAX_ALL_HELD_BYTES: Final = 128 << 20
"""Bytes that wait for all quotas, but for the last one of each."""
MAX_UNMEASURED: Final = 8
"""Reads of a quota that go on at a tick although it is not known yet what they bring: of a disk, or waiting on."""


class Scope(NamedTuple):
    """What is admitted: the quotas that limit it, how long it waits for them at a leader, and at which age no more, and
    what it is told then.
    """

    account: QuotaKind
    topic: QuotaKind
    hold_s: float
    in_all_s: float
    advice: str
    is_measured_first: bool
    """Whether it is known how much one takes before it goes on."""


SENDS: Final = Scope(
    QuotaKind.ACCOUNT,
    QuotaKind.TOPIC,
    HOLD_S,
    IN_ALL_S,
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


class Admission:
    """Meters of the quotas of `scope` on a node; each leader begins with full ones."""

    def __init__(
        self, machine: BrokerMachine, env: Environment, group: Group, requests: Requests, scope: Scope = SENDS
    ) -> None:
        self._scope = scope
        self._env = env
        self._group = group
        self._requests = requests
        self._meters: dict[QuotaOwner, Meter] = {}
        """Those of quotas that were taken back stay for as long as sends wait there."""
        self._numbers = count()
        self._asks_first: list[Callable[[], None]] = []
        self._of_accounts = False
        self._changes = -1
        self._ticking = False
        self._holds = True
        self._charged = 0
        """How many reads were charged."""
        machine.on_state(self._keep_table)
        group.listeners.append(self._on_role)

    def _keep_table(self, state: BrokerState) -> None:
        self._table: QuotaTable = state.table(QUOTAS)
        self._changes = -1

    def ask_first(self, hand_over: Callable[[], None]) -> None:
        """Have `hand_over` called before sends that waited go on.

        Sends that came since, and gather until they are staged, ask `takes` then. Otherwise they would find nobody
        waiting, and be stored before those that came first.
        """
        self._asks_first.append(hand_over)

    def limits(self, topics: Iterable[str]) -> bool:
        """Whether requests for these topics may be limited; asked once for many of them."""
        meters = self._present()
        return bool(meters) and (
            self._of_accounts or any(QuotaOwner(self._scope.topic, topic) in meters for topic in topics)
        )

    def takes(self, request: Request, topic: str, messages: int, size: int, polls_s: float = 0.0) -> bool:
        """Whether a request goes on; else it waits, or was refused, and its client hears of it. `size` in bytes.

        Its client expects it to wait `polls_s` for messages besides.
        """
        if request.within_quotas or not self._present():
            return True
        meters = self._meters_of(request.account, topic)
        if not meters:
            return True
        now = self._env.now()
        blocked = self._blocked(meters, now)
        if blocked is None:
            _use(request, meters, messages, size)
            return True
        if self._is_full(blocked) and not self._scope.is_measured_first:
            for gone in blocked.gone():
                self._refuse(blocked, gone.request, now)
        # 1. A read waits almost as long as it may. 2. Another node leads. 3. There it waits as long once more, and its
        # client has given up. How old it is goes with it; what it has waited for quotas does not.
        deadline = min(now + self._scope.hold_s, request.received + polls_s + self._scope.in_all_s)
        if self._is_full(blocked) or (deadline <= now and not blocked.is_taken_back):
            self._refuse(blocked, request, now)
        else:
            blocked.held += 1
            held_bytes = len(request.header) + len(request.body)
            blocked.wait(HeldSend(next(self._numbers), request, topic, messages, size, held_bytes, deadline))
            self._tick_later()
        return False

    def _blocked(self, meters: Iterable[Meter], now: float) -> Meter | None:
        """The first of some meters through which nothing may go now.

        Earlier sends go first. Reads do not wait for earlier ones: one that finds nothing uses nothing, and as many as
        come would wait behind each other for ever, for a quota that is not used.
        """
        is_ordered = self._scope.is_measured_first
        return next((meter for meter in meters if (is_ordered and meter.waiting) or meter.is_used_up(now)), None)

    def takes_again(self, request: Request, topic: str, polls_s: float) -> bool:
        """As `takes`, for a read that went on, waited for messages, and finds some: others may have read meanwhile."""
        request.within_quotas = False
        return self.takes(request, topic, 0, 0, polls_s)

    def charge(self, request: Request, topic: str, messages: int, size: int) -> None:
        """A read is answered with so much."""
        self._charged += 1
        if self._present():
            for meter in self._meters_of(request.account, topic):
                meter.take(messages, size)

    def release(self) -> None:
        """Nothing waits any more, and nothing will: this node stops, or leaves its group's route."""
        self._ask_those_that_came()
        self._holds = False
        self._handle_again()

    # ---------------------------------------------------------------- meters

    def meters(self) -> Mapping[QuotaOwner, Meter]:
        """The meters of all quotas."""
        return {owner: meter for owner, meter in self._present().items() if not meter.is_taken_back}

    def _present(self) -> dict[QuotaOwner, Meter]:
        table = self._table
        if table.changes != self._changes:
            self._changes = table.changes
            self._follow(table)
        return self._meters

    def _follow(self, table: QuotaTable) -> None:
        """Quotas were set, or taken back: where sends wait for one that is none any more, later ones wait behind them
        until all have gone on.
        """
        now, old, meters = self._env.now(), self._meters, dict[QuotaOwner, Meter]()
        for quota in table.rows():
            if quota.kind not in (self._scope.account, self._scope.topic):
                continue
            owner = QuotaOwner(quota.kind, quota.name)
            meter = old.pop(owner) if owner in old else Meter(quota, now)
            if meter.quota != quota:
                meter.change(quota, now)
            meters[owner] = meter
        for owner, meter in old.items():
            if meter.waiting:
                meter.change(PutQuota(owner.kind, owner.name), now)
                meters[owner] = meter
                self._env.call_soon(self._let_all_go)
        self._meters = meters
        self._of_accounts = any(owner.kind == self._scope.account for owner in meters)

    def _meters_of(self, account: str, topic: str) -> list[Meter]:
        owners = (QuotaOwner(self._scope.account, account), QuotaOwner(self._scope.topic, topic))
        return [meter for owner in owners if (meter := self._present().get(owner)) is not None]

    def _is_full(self, meter: Meter) -> bool:
        """Whether one more may not wait. For a quota that was taken back, none waits longer than this turn."""
        if meter.is_taken_back:
            return False
        return (
            not self._holds
            or len(meter.waiting) >= MAX_HELD
            or meter.waiting_bytes >= MAX_HELD_BYTES
            or sum(other.waiting_bytes for other in self._meters.values()) >= MAX_ALL_HELD_BYTES
        )

    # ---------------------------------------------------------------- those that wait

    def _tick_later(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._env.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._let_all_go()
        if any(meter.waiting for meter in self._meters.values()):
            self._tick_later()

    def _let_all_go(self) -> None:
        """Let go what may, and refuse what has waited long enough."""
        self._ask_those_that_came()
        now = self._env.now()
        for meter in list(self._present().values()):
            self._let_go(meter, now)
            for send in meter.overdue(now):
                self._refuse(meter, send.request, now)
        self._forget_taken_back()

    def _ask_those_that_came(self) -> None:
        for hand_over in self._asks_first:
            hand_over()

    def _let_go(self, meter: Meter, now: float) -> None:
        """Let requests go on for as long as there is something left, those that have waited longest first.

        Of reads most are answered on the spot, and charged. Of others few go on: what they bring is known some turns
        later, and all would go on before that. One at a tick would be too few: while one waits the next ones do, too.
        """
        unmeasured = 0
        while meter.waiting and not meter.is_used_up(now):
            send = meter.next()
            if not self._scope.is_measured_first and not send.request.origin.is_open:
                self._refuse(meter, send.request, now)  # a pop would hide messages that nobody gets
                continue
            meters = self._meters_of(send.request.account, send.topic)
            other = self._blocked([one for one in meters if one is not meter], now)
            if other is None:
                before = self._charged
                _use(send.request, meters, send.messages, send.size)
                self._requests.run(send.request)
                unmeasured += not self._scope.is_measured_first and self._charged == before
                if unmeasured == MAX_UNMEASURED and not meter.is_taken_back:
                    return
            elif self._is_full(other):
                self._refuse(other, send.request, now)
            else:
                other.wait(send)

    def _forget_taken_back(self) -> None:
        for owner in [owner for owner, meter in self._meters.items() if meter.is_taken_back and not meter.waiting]:
            del self._meters[owner]

    def _refuse(self, meter: Meter, request: Request, now: float) -> None:
        meter.refused += 1
        self._requests.fail(request, SystemBusy(f"{meter.refusal(now)}: {self._scope.advice}"))

    def _on_role(self) -> None:
        """Another leader takes what waits, by its own meters; this node's are full when it leads again."""
        if not self._group.ready:
            self._handle_again()
            now = self._env.now()
            for meter in self._meters.values():
                meter.fill(now)

    def _handle_again(self) -> None:
        sends = sorted(send for meter in self._meters.values() for send in meter.all())
        self._forget_taken_back()
        for send in sends:
            self._requests.run(send.request)


def _use(request: Request, meters: Iterable[Meter], messages: int, size: int) -> None:
    request.within_quotas = True
    for meter in meters:
        meter.take(messages, size)
