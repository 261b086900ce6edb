"""Keys of a configuration for what a process logs; every service has them in its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dledger.config_keys.declared import ConfigValue, UnexpectedError, key
from dledger.logs import LEVELS


def _levels(_name: str, value: ConfigValue, _base: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(level in LEVELS for level in value.values()):
        raise UnexpectedError(f"a table [log_levels] of logger = level, each level one of {', '.join(LEVELS)}")
    return {name: str(level) for name, level in value.items()}


@dataclass(frozen=True, kw_only=True)
class LogLevels:
    """Which events are worth a line."""

    log_level: str = key("INFO", "events below it are not logged", choices=LEVELS)
    log_levels: Mapping[str, str] = key(
        {},
        "levels of some loggers, and of those below them, instead: "
        '`[log_levels]` with `"dledger.net" = "WARNING"`, by the names in the [logs](operations/logs.md)',
        takes="a table of such levels",
        read=_levels,
    )
