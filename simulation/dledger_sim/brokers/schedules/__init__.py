"""Schedules written by hand for brokers, for interleavings that random search finds rarely.

A schedule raises `AssertionError` or `Violation` if the code under it breaks its promise. `brokers` is the group that
they drive. The modules by subject:

- `clocks`: group time
- `commits`: consumer offsets
- `questions`: questions for consumer offsets
- `crossings`: changes that cross others
- `timers`: delayed messages
- `retries`: messages that are sent back
- `pops`: consumers that pop
- `relays`: requests to clients
- `resets`: groups that are reset
- `quotas`: reads that wait for quotas
- `transactions`: transactions
- `trims`: trims
- `full_disks`: full disks
- `units`: units that the broker itself writes
- `upgrades`: nodes of different versions
- `locks`: queue locks
- `library`: our client library
- `requests`: the rest
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_sim.brokers.schedules.clocks import CLOCK_SCHEDULES
from dledger_sim.brokers.schedules.commits import COMMIT_SCHEDULES
from dledger_sim.brokers.schedules.crossings import CROSSING_SCHEDULES
from dledger_sim.brokers.schedules.full_disks import FULL_DISK_SCHEDULES
from dledger_sim.brokers.schedules.library import LIBRARY_SCHEDULES
from dledger_sim.brokers.schedules.locks import LOCK_SCHEDULES
from dledger_sim.brokers.schedules.pops import POP_SCHEDULES
from dledger_sim.brokers.schedules.questions import QUESTION_SCHEDULES
from dledger_sim.brokers.schedules.quotas import QUOTA_SCHEDULES
from dledger_sim.brokers.schedules.relays import RELAY_SCHEDULES
from dledger_sim.brokers.schedules.requests import REQUEST_SCHEDULES
from dledger_sim.brokers.schedules.resets import RESET_SCHEDULES
from dledger_sim.brokers.schedules.retries import RETRY_SCHEDULES
from dledger_sim.brokers.schedules.timers import TIMER_SCHEDULES
from dledger_sim.brokers.schedules.transactions import TRANSACTION_SCHEDULES
from dledger_sim.brokers.schedules.trims import TRIM_SCHEDULES
from dledger_sim.brokers.schedules.units import UNIT_SCHEDULES
from dledger_sim.brokers.schedules.upgrades import UPGRADE_SCHEDULES

SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    *REQUEST_SCHEDULES,
    *COMMIT_SCHEDULES,
    *QUESTION_SCHEDULES,
    *CROSSING_SCHEDULES,
    *TRIM_SCHEDULES,
    *FULL_DISK_SCHEDULES,
    *UNIT_SCHEDULES,
    *CLOCK_SCHEDULES,
    *UPGRADE_SCHEDULES,
    *LOCK_SCHEDULES,
    *TIMER_SCHEDULES,
    *RETRY_SCHEDULES,
    *TRANSACTION_SCHEDULES,
    *POP_SCHEDULES,
    *RESET_SCHEDULES,
    *QUOTA_SCHEDULES,
    *RELAY_SCHEDULES,
    *LIBRARY_SCHEDULES,
)
