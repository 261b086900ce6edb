"""Schedules written by hand, for interleavings that random search finds rarely.

Each is a known way to break a replicated log.

A schedule raises `AssertionError`, `InvariantError` or `Violation` if the code under it breaks its promise. `core` and
`memberships` drive consensus cores alone, `group` whole replicas on simulated machines, `disk` and `space` stores
across power losses and with full disks.
"""

from typing import Final

from dledger_sim.log.schedules.core import CORE_SCHEDULES
from dledger_sim.log.schedules.disk import DISK_SCHEDULES
from dledger_sim.log.schedules.group import GROUP_SCHEDULES
from dledger_sim.log.schedules.memberships import MEMBERSHIP_SCHEDULES
from dledger_sim.log.schedules.space import SPACE_SCHEDULES

SCHEDULES: Final = (*CORE_SCHEDULES, *MEMBERSHIP_SCHEDULES, *DISK_SCHEDULES, *SPACE_SCHEDULES, *GROUP_SCHEDULES)
