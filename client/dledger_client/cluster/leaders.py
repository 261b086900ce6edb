"""Leaders of broker groups, learned from routes, refusals and notices, and the nodes to ask while no leader is known.

A newer term wins; of equal terms the later report wins. There is one exception, for a leader that has just failed to
answer. It is believed again only after one of three events: it answers, a report has a newer term, or another node was
believed to lead. The interleaving behind that:

1. The leader is killed.
2. The client loses its connection.
3. The client asks a follower, whose election timeout has not passed yet.
4. The follower names the dead leader in good faith.

Believing it would send every waiting request to a dead address, again and again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

PROBE_INTERVAL_SECONDS: Final = 0.025
"""Interval in seconds at which the next node of a group is tried while the group's leader is unknown."""

LEADER_ID: Final = 0
"""The broker id under which name servers list a leader."""


class BrokerGroup:
    """One Raft group of brokers, by its broker name. Belongs to one event loop."""

    def __init__(self, name: str, on_leader: Callable[[BrokerGroup, str | None], None] | None = None) -> None:
        self.name = name
        self.cluster = ""
        self.addresses: tuple[str, ...] = ()
        self._addresses_by_id: Mapping[int, str] = {}
        self.leader: str | None = None
        self.term = -1
        self._on_leader = on_leader
        self._loop = asyncio.get_running_loop()
        self._listed_leader: str | None = None
        self._doubted_leader: str | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._probe_at = 0.0
        self._probe_index = 0
        self._timer: asyncio.TimerHandle | None = None

    def update_from_route(self, cluster: str, addresses: Mapping[int, str]) -> None:
        """Take over a name server's list: addresses by broker id, id 0 being the leader.

        If the list is empty, the group is absent for the moment, and its nodes will return at their addresses.

        The listed leader is believed if the previous list had another one, or if no leader is known and none is in
        doubt. An id 0 whose address is also listed under another id is a stand-in that the name server made up, and
        is ignored.
        """
        self.cluster = cluster
        if not addresses:
            return
        self._addresses_by_id = dict(addresses)
        self.addresses = tuple(dict.fromkeys(addresses[broker_id] for broker_id in sorted(addresses)))
        listed = addresses.get(LEADER_ID)
        if listed is None or any(listed == address for broker_id, address in addresses.items() if broker_id):
            return
        changed, self._listed_leader = listed != self._listed_leader, listed
        if (changed and listed != self._doubted_leader) or (self.leader is None and self._doubted_leader is None):
            self._set_leader(listed)

    def learn(self, address: str | None, term: int | None) -> None:
        """Take over a hint that `address` leads in `term`. None stands for an unknown value."""
        if term is not None:
            if term < self.term:
                return
            if term > self.term:
                self.term = term
                self._doubted_leader = None
                if address is None:
                    self._set_leader(None)
        if address is not None and address != self._doubted_leader:
            self._set_leader(address)

    def confirm(self, address: str) -> None:
        """Record that a node is the leader, because it did something that only a leader does."""
        if address != self.leader:
            self._doubted_leader = None
            self._set_leader(address)

    def doubt(self, address: str) -> None:
        """Record that a node that was asked as the leader failed, or said that it is not the leader."""
        if self.leader == address:
            self._doubted_leader = address
            self._set_leader(None)

    async def target(self, deadline: float) -> str:
        """Return the address to ask now: the leader, or the next node to try. Raises TimeoutError at `deadline`.

        While there is no leader, callers wait for their turn. One of them gets a node to try every
        `PROBE_INTERVAL_SECONDS`, and all return as soon as one caller has found the leader.
        """
        while self.leader is None:
            now = self._loop.time()
            if now >= self._probe_at and self.addresses:
                self._probe_at = now + PROBE_INTERVAL_SECONDS
                self._probe_index += 1
                return self.addresses[self._probe_index % len(self.addresses)]
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            self._arm_timer()
            async with asyncio.timeout_at(deadline):
                await waiter
        return self.leader

    def any_address(self, avoid: str | None = None, wanted_id: int = LEADER_ID) -> str | None:
        """Return a node to read from, None if none is known.

        The order of preference: the node with `wanted_id` in the route, unless that is `LEADER_ID`; the leader; the
        other nodes in turn. `avoid` is returned only if there is no other node.
        """
        wanted = None if wanted_id == LEADER_ID else self._addresses_by_id.get(wanted_id)
        if wanted is not None and wanted != avoid:
            return wanted
        if self.leader is not None and self.leader != avoid:
            return self.leader
        choices = [address for address in self.addresses if address != avoid] or list(self.addresses)
        if not choices:
            return None
        self._probe_index += 1
        return choices[self._probe_index % len(choices)]

    def _set_leader(self, address: str | None) -> None:
        if address == self.leader:
            return
        previous, self.leader = self.leader, address
        if address is not None:
            self._doubted_leader = None
            waiters, self._waiters = self._waiters, deque()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._on_leader is not None:
            self._on_leader(self, previous)

    def _arm_timer(self) -> None:
        if self._timer is None:
            now = self._loop.time()
            at = self._probe_at if self._probe_at > now else now + PROBE_INTERVAL_SECONDS
            self._timer = self._loop.call_at(at, self._wake_next)

    def _wake_next(self) -> None:
        """Give the turn to the waiter that has waited longest; the others keep waiting."""
        self._timer = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
        if self._waiters:
            self._arm_timer()
