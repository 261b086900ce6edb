"""Brokers that remember sends, and idempotent sends."""

from __future__ import annotations

from dataclasses import replace

from served_broker import ServedBroker

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.sending.dedup.remembered import REMEMBERED

WINDOW_MS = 10_000


def remembering(broker: ServedBroker, *, window_ms: int = WINDOW_MS, max_keys: int = 1000) -> ServedBroker:
    """Have the group remember sends."""
    config = replace(broker.config, idempotent_window_ms=window_ms, max_idempotent_keys=max_keys)
    broker.memory.machine.events.add(GroupSettings(broker.memory.machine, broker.memory.env, config))
    broker.settle()
    assert broker.memory.machine.state.table(REMEMBERED).window_ms == window_ms
    return broker


def keyed(key: object) -> str:
    """Return the properties of a message with a unique key."""
    return f"UNIQ_KEY\x01{key}\x02"
