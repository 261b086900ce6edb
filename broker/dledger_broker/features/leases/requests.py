"""Leases on a node: pops begin them, heartbeats renew those of their clients, and leaving ends them.

A heartbeat may reach any node. A node that does not lead reports heartbeats of clients with leases to the leader
(20020). The leader renews a lease once a third of its length has passed, so most heartbeats cost nothing. A lease is
renewed up to its length from the heartbeat on, and never by a clock alone. A heartbeat counts from its arrival at the
leader, even if the log takes the renewal later:

1. A heartbeat comes in time, and its renewal waits for a majority that is slow.
2. The lease seems to have run out, and the leader proposes to deliver its messages again.
3. Both are applied, and another consumer gets messages on which a living client works.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.leases.commands import NAME, LeasedPop, RenewedLease, RenewLeases
from dledger_broker.features.leases.table import LEASES, MAX_LENGTH_MS, LeaseTable, is_client_id, lease_owner
from dledger_broker.features.pop.commands import Pop
from dledger_broker.features.pop.requests import Leasing
from dledger_broker.features.pop.revival import HiddenByLease
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests, own_request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import UnregisterClientHeader, decode_ext, encode_ext
from dledger_remoting.headers_pop import LEASE_FIELD, LeaseHeardHeader, PopHeader

PARTS: Final = 3
"""Number of parts of a lease's length, after the first of which a heartbeat renews the lease."""
MAX_ROWS: Final = 25
"""Maximum number of leases that one command renews. With the longest names they fit into the smallest segment."""


class LeaseRequests(Part, Leasing):
    """Part that gives, renews and ends leases on the leader, and reports heartbeats to the leader on other nodes.

    `look_again` is called with the clients whose leases have ended early.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        group: LeadershipView,
        clock: GroupClock,
        requests: Requests,
        look_again: Callable[[Container[str]], None],
        times: HiddenByLease,
    ) -> None:
        self.times = times
        self._machine = machine
        self._env = env
        self._group = group
        self._clock = clock
        self._requests = requests
        self._look_again = look_again
        self._in_flight: set[str] = set()
        self._ending: set[str] = set()
        self._collected: list[RenewedLease] = []

    @property
    def routes(self) -> Mapping[int, Route]:
        of_nodes = (rights.cluster(Action.UPDATE),)
        return {RequestCode.LEASE_HEARD: Route(self.heard, Needs.LEADER, NO_EFFECT, rights=of_nodes)}

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("pop_leases", "Clients that have popped messages under a lease", self._count),)

    def _count(self) -> int:
        return len(self._table)

    @property
    def _table(self) -> LeaseTable:
        return self._machine.state.table(LEASES)

    # ---------------------------------------------------------------- pops

    def owner_of(self, request: Request, header: PopHeader) -> str:
        """Return the owner of the lease that a pop asks for, or "". Raises `RemotingError`."""
        client_id = request.ext.get(LEASE_FIELD)
        if client_id is None:
            return ""
        self._machine.activation.require(NAME)
        if header.invisible_time > MAX_LENGTH_MS:
            raise InvalidParameter(f"invisibleTime {header.invisible_time} of a lease is above {MAX_LENGTH_MS} ms")
        return lease_owner(client_id, request.account)

    def leased(self, pop: Pop, owner: str) -> LeasedPop:
        """Return the command of a pop under a lease."""
        return LeasedPop(pop, owner)

    # ---------------------------------------------------------------- any node

    def client_beat(self, request: Request, client_id: str) -> None:
        self._report(request, lease_owner(client_id, request.account), has_left=False)

    def client_left(self, request: Request, header: UnregisterClientHeader) -> None:
        if header.consumer_group and is_client_id(header.client_id):
            self._report(request, lease_owner(header.client_id, request.account), has_left=True)

    def _report(self, request: Request, owner: str, *, has_left: bool) -> None:
        if self._table.get(owner) is None:
            return
        if self._group.ready:
            self._change(owner, has_left=has_left)
            return
        ext = encode_ext(LeaseHeardHeader(owner, has_left))
        command = RemotingCommand(RequestCode.LEASE_HEARD, ext=ext, flag=FLAG_ONEWAY)
        self._requests.pass_on(own_request(request.origin, command, self._env.now(), request.account))

    # ---------------------------------------------------------------- the leader

    def heard(self, request: Request) -> None:
        """Handle 20020: another node has heard of the owner of a lease. From a client the request has no effect."""
        header = decode_ext(LeaseHeardHeader, request.ext)
        if request.principal is not None and request.principal.is_node:
            self._change(header.owner, has_left=header.has_left)
        request.respond()

    def _change(self, owner: str, *, has_left: bool) -> None:
        """Renew or end a lease. A lease that its client has left is not renewed any more."""
        lease, now_ms = self._table.get(owner), self._clock.delay_base_ms()
        if lease is None or not lease.length_ms or owner in self._ending:
            return
        if not has_left:
            lease.renewed_at = self._env.now()
        if now_ms is None:
            return
        if has_left:
            self._ending.add(owner)
            self._collect(RenewedLease(owner, now_ms, 0))
            return
        until_ms = now_ms + lease.length_ms
        if until_ms - lease.until_ms >= lease.length_ms // PARTS and owner not in self._in_flight:
            self._in_flight.add(owner)
            self._collect(RenewedLease(owner, until_ms, lease.length_ms))

    def _collect(self, row: RenewedLease) -> None:
        """Propose a row with all others of this turn of the event loop."""
        if not self._collected:
            self._env.call_soon(self._propose)
        self._collected.append(row)

    def _propose(self) -> None:
        collected, self._collected = self._collected, []
        for begin in range(0, len(collected), MAX_ROWS):
            rows = tuple(collected[begin : begin + MAX_ROWS])
            done = partial(self._done, rows)
            try:
                privileged = self._machine.overlay.may_use_reserve
            except NotLeaderError as error:
                done(error)
            else:
                self._machine.stage_command(RenewLeases(rows), done, privileged=privileged)

    def _done(self, rows: Sequence[RenewedLease], error: LogError | None) -> None:
        ended = {row.client for row in rows if not row.length_ms}
        self._ending -= ended
        self._in_flight.difference_update(row.client for row in rows if row.length_ms)
        if ended and error is None:
            self._look_again(ended)

    def unready(self, error: NotLeaderError) -> None:
        """Give up the collected rows, because this replica no longer leads. None of them was proposed."""
        collected, self._collected = self._collected, []
        self._done(collected, error)
