"""The configuration in effect: a node's own, with the values that operators have set for the whole group while it
runs.

Live keys have their values as text. The text is the value that a `broker.conf` would have under the key's own name:
`true`, `72`, `0.75`. The declaration of a key says that it is live. No live key names a path, an address or code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.errors import ConfigError


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


_logger: Final = logging.getLogger(__name__)


class Settings(Protocol):
    """Values that operators have set, as texts by key, with the number of their changes."""

    @property
    def changes(self) -> int:
        """A number that differs after each change."""

    @property
    def values(self) -> Mapping[str, str]:
        """The values by the key of the configuration."""


class NoSettings:
    """Settings without any value."""

    changes: Final = 0
    values: Final[Mapping[str, str]] = {}


class LiveConfig:
    """The configuration in effect. `own` is the configuration that the node has started with.

    A value that is set for the group may not fit `own`, because the other keys of the group's nodes may differ.
    """

    def __init__(self, own: BrokerConfig) -> None:
        self.own = own
        self._refused: Mapping[str, str] = {}
        self._settings: Settings = NoSettings()
        self._seen_changes = 0
        self._in_effect = own

    def follow(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self._apply_settings()

    @property
    def config(self) -> BrokerConfig:
        """The configuration in effect now. A caller that keeps it misses later changes."""
        if self._settings.changes != self._seen_changes:
            self._apply_settings()
        return self._in_effect

    @property
    def refused(self) -> Mapping[str, str]:
        """The reasons why values that are set for the group are not in effect here, by key."""
        if self._settings.changes != self._seen_changes:
            self._apply_settings()
        return self._refused

    @property
    def is_set(self) -> Mapping[str, str]:
        """The values that are set for the group, by key."""
        return self._settings.values

    def _apply_settings(self) -> None:
        """Bring the set values into effect, each key by itself, so that a value that does not fit holds up no other."""
        config, refused = self.own, dict[str, str]()
        for key, text in self._settings.values.items():
            if key not in KEYS.live:
                refused[key] = f"{key} is no live key of this version"
                continue
            try:
                config = with_live_values(config, {key: text})
            except ConfigError as error:
                refused[key] = str(error)
        for key in refused.keys() - self._refused.keys():
            _logger.error("node=%s event=setting_refused reason=%r", self.own.node_id, refused[key])
        self._in_effect, self._refused, self._seen_changes = config, refused, self._settings.changes
