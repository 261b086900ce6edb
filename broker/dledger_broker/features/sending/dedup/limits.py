"""Limits of the memory of sends: the limits of this node's configuration, and whether a leader records them."""

from __future__ import annotations

from dledger_broker.config import BrokerConfig
from dledger_broker.features.sending.dedup.remembered import REMEMBERED, LimitSends
from dledger_broker.kernel.state import BrokerState


def configured_limits(config: BrokerConfig) -> LimitSends:
    """Return the limits that a leader with this configuration sets for its group."""
    return LimitSends(config.idempotent_window_ms, config.max_idempotent_keys)


def are_to_be_recorded(limits: LimitSends, state: BrokerState) -> bool:
    """Return whether the group has other limits.

    While nothing is remembered, and nothing is to be, a difference does not matter.
    """
    recorded = state.table(REMEMBERED)
    differ = (recorded.window_ms, recorded.max_rows) != (limits.window_ms, limits.max_rows)
    return differ and bool(limits.window_ms or recorded.window_ms)
