"""Class filter of the workload `filtered`: what a node's own configuration names, and a process of its own runs.

It imports nothing of the rig: every node that is started again loads it anew.
"""

from __future__ import annotations

from dledger_broker.filter_process import FilteredMessage


def is_light(message: FilteredMessage) -> bool:
    """True for a message that weighs less than five, or nothing."""
    return int(message.properties.get("weight", "0")) < 5
