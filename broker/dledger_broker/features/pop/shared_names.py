"""Retry topics that several groups may have: `%RETRY%a_b_c` is that of `a` in `b_c`, of `a_b` in `c`, and of `a_b_c`.

Without access control who pops gets what comes again in it, whoever it was popped by, as with RocketMQ. With it nothing
more is written there by pops: who may make a group could take such a name, and then read what comes again for another
one, or hold it up. What was written there before is popped while no other group has the name, whatever rights its
consumer has.

1. `a_b` pops topic `c` as an account that may consume as every group. 2. Another account may consume as `a_b_c`, and so
may send to its retry topic. 3. Shown to the first account as a message of `c`, that would be published there without
the right.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_broker.features.groups.table import GROUPS
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.machine import BrokerMachine
from dledger_remoting.pop import Retry, pop_retry_topic


class SharedNames:
    """Whether copies may be written to the retry topic of the older name, and whether a pop may look there."""

    def __init__(self, machine: BrokerMachine, access: Access) -> None:
        self._machine = machine
        self._access = access

    @property
    def are_unsafe(self) -> bool:
        """Whether nothing may be written there any more."""
        return self._access.is_on

    def may_read(self, group: str, topic: str) -> bool:
        """Whether a pop may take what lies there for what comes again to the group."""
        return not self.are_unsafe or not any(self._others(group, topic))

    def popped_topic(self, group: str, name: str) -> str | None:
        """The topic that a group pops and whose retry topic of the older name this is; None if it is none, or if the
        topic is gone.
        """
        topic = name.removeprefix(pop_retry_topic(group, "", Retry.V1))
        return None if topic == name or self._machine.topic(topic) is None else topic

    def _others(self, group: str, topic: str) -> Iterator[str]:
        """The other groups that have a retry topic of this name."""
        groups, name = self._machine.state.table(GROUPS).by_name, f"{group}_{topic}"
        if name in groups:
            yield name
        for at, letter in enumerate(name):
            other = name[:at]
            if letter == "_" and other != group and other in groups and self._machine.topic(name[at + 1 :]):
                yield other
