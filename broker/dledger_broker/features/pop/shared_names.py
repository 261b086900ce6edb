"""Retry topics that several groups may have: `%RETRY%a_b_c` is that of `a` in `b_c`, of `a_b` in `c`, and of `a_b_c`.

Without access control who pops gets what comes again in it, whoever it was popped by, as with RocketMQ. With it nothing
more is written there: who may make a group could take such a name, and then read what comes again for another one, or
hold it up. What was written there before is popped only by who may consume as each of the groups that have the topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action, Demand, ResourceKind


class SharedNames:
    """Whether copies may be written to the retry topic of the older name, and whether a pop may look there."""

    def __init__(self, machine: BrokerMachine, access: Access) -> None:
        self._machine = machine
        self._access = access

    @property
    def are_unsafe(self) -> bool:
        """Whether nothing may be written there any more."""
        return self._access.is_on

    def may_read(self, request: Request, group: str, topic: str) -> bool:
        """Whether who asks may have what comes again there for all its groups."""
        return not self.are_unsafe or all(
            self._access.allows(request, Demand((Action.SUB,), ResourceKind.GROUP, other))
            for other in self._others(group, topic)
        )

    def _others(self, group: str, topic: str) -> Iterator[str]:
        """The other groups that have a retry topic of this name."""
        groups, name = self._machine.state.table(GROUPS).by_name, f"{group}_{topic}"
        if name in groups:
            yield name
        for at, letter in enumerate(name):
            other = name[:at]
            if letter == "_" and other != group and other in groups and self._machine.topic(name[at + 1 :]):
                yield other
