"""Creation of consumer groups by their first read, which the leader does if the configuration allows it."""

from __future__ import annotations

from functools import partial

from dledger_broker.features.groups.proposals import GroupProposals
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.errors import GroupNotExist
from dledger_remoting.topics import SubscriptionGroupConfig, is_system_group, validate_group


class ReaderGroups:
    """Creator of the groups of readers."""

    def __init__(self, live: LiveConfig, group: Group, requests: Requests, proposals: GroupProposals) -> None:
        self._live = live
        self._group = group
        self._requests = requests
        self._proposals = proposals

    def has_to_be_made(self, name: str) -> bool:
        """Return whether a read has to make a group that does not exist.

        Raises `RemotingError` if the group may not be made.
        """
        validate_group(name)
        if is_system_group(name):
            return False
        if not self._live.config.auto_create_group:
            raise GroupNotExist(f"consumer group {name} does not exist: create it first")
        return True

    def make(self, request: Request, name: str) -> None:
        """Make a group, and handle the request again after that."""
        if not self._group.ready:
            self._requests.confirm(request)
            return
        self._proposals.require_room(request, name)
        self._proposals.ensure_group(SubscriptionGroupConfig(name), partial(self._requests.resume, request))
