"""Schedules by hand for brokers: what random search finds rarely.

They raise `AssertionError` or `Violation` if the code under them breaks its promise. `clocks` has those of group
time, `commits` those of consumer offsets, `questions` those of questions for them, `crossings` those of changes that
cross others, `timers` those of delayed messages, `retries` those of messages that are sent back, `pops` those of
consumers that pop, `relays` those of requests to clients, `resets` those of groups that are reset, `quotas` those of
reads that wait for quotas, `transactions` those of transactions, `trims` those of trims, `units` those of units that
the broker itself writes, `upgrades` those of nodes of different versions, `locks` those of queue locks, `requests`
the rest; `brokers` is the group that they drive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_sim.brokers.schedules.clocks import CLOCK_SCHEDULES
from dledger_sim.brokers.schedules.commits import COMMIT_SCHEDULES
from dledger_sim.brokers.schedules.crossings import CROSSING_SCHEDULES
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
)
