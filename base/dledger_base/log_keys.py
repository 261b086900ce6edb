"""Configuration keys for the logs of a process. Every service reads them from its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dledger_base.config_keys.declared import ConfigValue, UnexpectedError, key
from dledger_base.logs import LEVELS


def _levels(_name: str, value: ConfigValue, _base: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(level in LEVELS for level in value.values()):
        raise UnexpectedError(f"a table [log_levels] of logger = level, each level one of {', '.join(LEVELS)}")
    return {name: str(level) for name, level in value.items()}


@dataclass(frozen=True, kw_only=True)
class LogLevels:
    """Levels of the events that are logged."""

    log_level: str = key("INFO", "minimum level of the events that are logged", choices=LEVELS)
    log_levels: Mapping[str, str] = key(
        {},
        "minimum levels of single loggers and all below them, instead of `log_level`: `[log_levels]` with "
        '`"dledger.net" = "WARNING"`. The page about [logs](operations/logs.md) lists the names',
        takes="a table of loggers and levels",
        read=_levels,
    )
