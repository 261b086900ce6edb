"""Live keys: values of the configuration that are set, as text, for a whole group while its nodes run.

The text is the value that a `broker.conf` would have under the key's own name: `true`, `72`, `0.75`. The declaration of
a key says that it is live. No live key names a path, an address or code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.config import KEYS, BrokerConfig


def with_live_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Return a configuration with other values of live keys.

    Raises `ConfigError` for a text that is not a value of its key, and for a value that does not fit the configuration.
    """
    return replace(config, **KEYS.read({key: typed(key, text) for key, text in values.items()}).values)


def typed(key: str, text: str) -> ConfigValue:
    """Return the number or truth value in a text, if the key expects one, otherwise the text."""
    match KEYS.by_name[key].kind:
        case kind if kind is bool:
            return {"true": True, "false": False}.get(text, text)
        case kind if kind in (int, float):
            try:
                return int(text) if kind is int else float(text)
            except ValueError:
                return text
        case _:
            return text


def text_of(value: object) -> str:
    """Return a value as text."""
    return str(value).lower() if isinstance(value, bool) else str(value)
