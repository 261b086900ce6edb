"""Class filter of the workload `filtered`. The nodes' configuration names it, and a process of each node runs it.

It imports nothing of the rig, so that every start of a node loads little.
"""

from __future__ import annotations

from dledger_broker.filter_process import FilteredMessage


def is_light(message: FilteredMessage) -> bool:
    """Return True for a message with a weight below five, or without a weight."""
    return int(message.properties.get("weight", "0")) < 5
