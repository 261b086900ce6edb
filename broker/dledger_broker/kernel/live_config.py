"""The configuration in effect: a node's own, with what operators have set for its whole group while it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.errors import ConfigError
from dledger_broker.live_keys import with_live_values

_logger: Final = logging.getLogger(__name__)


class Settings(Protocol):
    """What operators have set: texts by key, and how often that has changed."""

    @property
    def changes(self) -> int:
        """Another number after each change."""

    @property
    def values(self) -> Mapping[str, str]:
        """By the key of the configuration."""


class NoSettings:
    """Nothing is set."""

    changes: Final = 0
    values: Final[Mapping[str, str]] = {}


class LiveConfig:
    """`own` is what the node has started with. A value that is set for the group may not fit it: the nodes of a group
    may differ in what else they are configured to.
    """

    def __init__(self, own: BrokerConfig) -> None:
        self.own = own
        self._refused: Mapping[str, str] = {}
        self._settings: Settings = NoSettings()
        self._looked_at = 0
        self._in_effect = own

    def follow(self, settings: Settings) -> None:
        """From now on these count."""
        self._settings = settings
        self._look()

    @property
    def config(self) -> BrokerConfig:
        """What counts now; whoever keeps it misses later changes."""
        if self._settings.changes != self._looked_at:
            self._look()
        return self._in_effect

    @property
    def refused(self) -> Mapping[str, str]:
        """Why what is set for the group is not in effect here, by key."""
        if self._settings.changes != self._looked_at:
            self._look()
        return self._refused

    @property
    def is_set(self) -> Mapping[str, str]:
        """What is set for the group, by key."""
        return self._settings.values

    def _look(self) -> None:
        """Bring what is set into effect, each key by itself: one that does not fit holds up no other one."""
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
        self._in_effect, self._refused, self._looked_at = config, refused, self._settings.changes
