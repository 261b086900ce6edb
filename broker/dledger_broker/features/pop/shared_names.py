"""Retry topics whose name several groups can share.

For example, `%RETRY%a_b_c` belongs to group `a` popping `b_c`, to group `a_b` popping `c`, and to group `a_b_c`.

Without access control, each of these groups gets the redelivered messages of the other groups, as with RocketMQ. With
access control, pops no longer write copies to topics with shared names. Otherwise an account that may create a group
could choose a name by which it reads or delays the redelivered messages of another group. Earlier copies in these
topics are popped only while no other group shares the name, even if the consumer has rights for all groups:

1. Group `a_b` pops topic `c`, by an account that may consume as every group.
2. Another account may consume as `a_b_c`, and so may send to the retry topic of that group.
3. Shown to the first account as a message of `c`, its message would be published in `c` without the right to do so.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.machine import BrokerMachine
from dledger_remoting.pop import Retry, pop_retry_topic


class SharedNames:
    """Judge of whether pops may write to a retry topic of the older name, and whether they may read there."""

    def __init__(self, machine: BrokerMachine, access: Access) -> None:
        self._machine = machine
        self._access = access

    @property
    def are_unsafe(self) -> bool:
        """True if nothing may be written to topics with shared names any more."""
        return self._access.is_on

    def may_read(self, group: str, topic: str) -> bool:
        """Return whether a pop may read the group's retry topic of the older name."""
        return not self.are_unsafe or not any(self._others(group, topic))

    def popped_topic(self, group: str, name: str) -> str | None:
        """Return the topic that a group pops and whose retry topic of the older name this is.

        Return None if the name has another form, or if the topic is gone.
        """
        topic = name.removeprefix(pop_retry_topic(group, "", Retry.V1))
        return None if topic == name or self._machine.topic(topic) is None else topic

    def _others(self, group: str, topic: str) -> Iterator[str]:
        """Yield the other groups that have a retry topic of this name."""
        groups, name = self._machine.state.table(GROUPS).by_name, f"{group}_{topic}"
        if name in groups:
            yield name
        for at, letter in enumerate(name):
            other = name[:at]
            if letter == "_" and other != group and other in groups and self._machine.topic(name[at + 1 :]):
                yield other
