"""Schedules by hand, for what random search finds rarely: each is a known way to break a replicated log.

They raise `AssertionError`, `InvariantError` or `Violation` if the code under them breaks its promise.  `core` and
`memberships` drive cores of the consensus alone, `group` whole replicas on simulated machines, `disk` stores across
power losses.
"""

from typing import Final

from dledger_sim.log.schedules.core import CORE_SCHEDULES
from dledger_sim.log.schedules.disk import DISK_SCHEDULES
from dledger_sim.log.schedules.group import GROUP_SCHEDULES
from dledger_sim.log.schedules.memberships import MEMBERSHIP_SCHEDULES
from dledger_sim.log.schedules.space import SPACE_SCHEDULES

SCHEDULES: Final = (*CORE_SCHEDULES, *MEMBERSHIP_SCHEDULES, *DISK_SCHEDULES, *SPACE_SCHEDULES, *GROUP_SCHEDULES)
