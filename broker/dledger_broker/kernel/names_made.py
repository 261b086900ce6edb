"""Limits on topics and consumer groups that clients make, by use or by request.

Each topic or group costs every node memory, and enlarges every route and snapshot. The leader checks the limits before
it proposes a new topic or group. Topics and groups above a limit stay. The names that an account has made are in the
memory of this leader only, and count from 0 again with the next leader.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dledger.errors import NotLeaderError
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request
from dledger_remoting.errors import NoPermission

COST_BYTES: Final = 1_024
"""Size in bytes that an account owes its quota for a name that it makes."""


class NamesMade(EventListener):
    """Names that accounts have made since this node leads. Accounts are charged for each (`name_made`)."""

    def __init__(self, machine: BrokerMachine, live: LiveConfig, access: Access, counters: BrokerCounters) -> None:
        self._events = machine.events
        self._machine = machine
        self._live = live
        self._access = access
        self._counters = counters
        self._names_by_account: dict[str, set[tuple[str, str]]] = {}

    def unready(self, error: NotLeaderError) -> None:
        _ = error
        self._names_by_account.clear()

    def make_topic(self, request: Request | None, name: str) -> None:
        """Check that a topic may be made, for the client of `request` unless that is None. Raises `NoPermission`."""
        topics = self._machine.state.topics
        if name not in topics:
            limit = self._live.config.max_topics
            if len(topics) >= limit:
                self._counters.max_topics += 1
                raise _full("topic", name, len(topics), f"max_topics = {limit}")
            self._count(request, "topic", name)

    def make_group(self, request: Request | None, name: str, groups: Collection[str]) -> None:
        """Check that a consumer group may be made, as `make_topic` does. `groups` are the existing groups."""
        if name not in groups:
            limit = self._live.config.max_groups
            if len(groups) >= limit:
                self._counters.max_groups += 1
                raise _full("group", name, len(groups), f"max_groups = {limit}")
            self._count(request, "group", name)

    def _count(self, request: Request | None, kind: str, name: str) -> None:
        account = "" if request is None else request.account
        if request is None or not account or self._access.is_admin(request):
            return
        names = self._names_by_account.setdefault(account, set())
        if (kind, name) in names:
            return
        limit = self._live.config.max_names_per_account
        if len(names) >= limit:
            self._counters.max_names_per_account += 1
            raise NoPermission(
                f"{kind} {name} is not made: account {account} has made {len(names)} topics and groups, and "
                f"max_names_per_account = {limit}: let an administrator make it"
            )
        names.add((kind, name))
        for charge in self._events.name_made:
            charge(account, 1, COST_BYTES)


def _full(kind: str, name: str, count: int, limit: str) -> NoPermission:
    return NoPermission(f"{kind} {name} is not made: there are {count}, and {limit}: delete some, or raise it")
