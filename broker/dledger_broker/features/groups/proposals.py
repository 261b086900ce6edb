"""Proposals of consumer group changes on the leader."""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import LogError
from dledger_broker.features.groups.table import GROUPS, DeleteGroup, PutGroup
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.names_made import NamesMade
from dledger_broker.kernel.overlay import ChangesInFlight
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.topics import SubscriptionGroupConfig


class GroupProposals:
    """Proposer of changes of consumer groups. A change waits for a change of the same group that is in flight.

    Every `done` is called as `Overlay` says.
    """

    def __init__(self, machine: BrokerMachine, names: NamesMade | None = None) -> None:
        self._changes = ChangesInFlight(machine.overlay)
        self._names = names
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._groups = state.table(GROUPS).by_name

    def has_group(self, name: str) -> bool:
        """Return whether offsets may be committed for a group: it exists, and its deletion is not in flight."""
        return name in self._groups and not self.is_deleting(name)

    def require_room(self, request: Request | None, name: str) -> None:
        """Check that a client may have a group made. Raises `NoPermission` beyond a limit.

        `request` is the client's request, None if no client asks.
        """
        if self._names is not None:
            self._names.make_group(request, name, self._groups)

    def is_deleting(self, name: str) -> bool:
        """Return whether the deletion of a group is in flight. Nothing may be committed for that group."""
        return name in self._changes.deleting

    def put_group(self, config: SubscriptionGroupConfig, done: Done) -> None:
        """Create or replace a consumer group, after a change of it that is in flight."""
        self.change_group(config.group_name, lambda _: config, done)

    def change_group(
        self, name: str, make: Callable[[SubscriptionGroupConfig | None], SubscriptionGroupConfig], done: Done
    ) -> None:
        """Create or replace a consumer group with the configuration that `make` returns, after changes in flight.

        `make` gets the configuration after these changes, None if the group does not exist. It must not raise.
        """
        if not self._changes.wait(name, lambda _: self.change_group(name, make, done)):
            self._changes.propose(name, PutGroup(make(self._groups.get(name))), done)

    def ensure_group(self, config: SubscriptionGroupConfig, done: Done) -> None:
        """Create a consumer group unless it exists. A second caller gets the outcome of the first."""

        def changed(error: LogError | None) -> None:
            if error is None:
                self.ensure_group(config, done)
            else:
                done(error)

        name = config.group_name
        if self._changes.wait(name, changed):
            return
        if name in self._groups:
            done(None)
        else:
            self.put_group(config, done)

    def delete_group(self, name: str, done: Done, *, clean_offsets: bool = False) -> None:
        """Remove a consumer group, after a change of it that is in flight. A missing group counts as removed."""
        if not self._changes.wait(name, lambda _: self.delete_group(name, done, clean_offsets=clean_offsets)):
            self._changes.propose_deletion(name, DeleteGroup(name, clean_offsets), done)
