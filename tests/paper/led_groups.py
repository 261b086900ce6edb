"""Groups of cores with a leader, and the members' names."""

from dledger_sim.cores import CoreGroup
from dledger_sim.engine_group import Envelope, replica

A, B, C, D = map(replica, "abcd")


def led_by_a(*others: str, one_entry_a_message: bool = False) -> CoreGroup:
    """Return a group in which core `a` leads term 1 and its no-op (index 0) is committed everywhere."""
    group = CoreGroup("a", *(others or ("b", "c")), one_entry_a_message=one_entry_a_message)
    group.elect("a")
    group.pass_time(0.2)
    assert {core.engine.commit_index for core in group.members.values()} == {0}
    return group


def carries_entries(envelope: Envelope) -> bool:
    """Return whether a message carries entries, as a filter for `CoreGroup.hold`."""
    return bool(envelope.metas)
