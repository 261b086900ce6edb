"""Tables of configuration keys for the documentation, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from dledger_base.config_keys.declared import Alias, Key

_SIZES: Final = ((1 << 60, "EiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_HEAD: Final = "| key | default | takes | |\n|---|---|---|---|\n"


def table_of(keys: Iterable[Key]) -> str:
    """Return the table of keys: name, default, values that they take, meaning. Keys that can change live are marked."""
    return _HEAD + "".join(_row(key) for key in keys)


def limits_of(keys: Iterable[Key]) -> str:
    """Return the table of limits: name, value, meaning."""
    rows = [f"| `{key.name}` | {default_text(key)} | {_meaning(key)} |\n" for key in keys]
    return "| limit | value | |\n|---|---|---|\n" + "".join(rows)


def aliases_of(keys: Iterable[Key]) -> str:
    """Return the table of RocketMQ's names for our keys, in the order of our keys."""
    rows = [f"| {_alias(alias)} | `{key.name}` |\n" for key in keys for alias in key.about.aliases]
    return "| RocketMQ | here |\n|---|---|\n" + "".join(rows)


def _alias(alias: Alias) -> str:
    note = alias.note or ", ".join(f"`{word}`" for word in alias.words)
    return f"`{alias.name}`" + (f" ({note})" if note else "")


def default_text(key: Key) -> str:
    """Return the default of a key in Markdown."""
    if key.about.shown:
        return key.about.shown
    if key.is_needed:
        return "required"
    if key.default is None or (isinstance(key.default, tuple | Mapping) and not key.default):
        return "none"
    return f"`{_literal(key.default)}`"


def _row(key: Key) -> str:
    cells = (f"`{key.name}`{' (live)' if key.about.live else ''}", default_text(key), _takes(key), _meaning(key))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _meaning(key: Key) -> str:
    about = key.about
    return f"{about.meaning}; {about.consequence}" if about.consequence else about.meaning


def _takes(key: Key) -> str:
    about = key.about
    if about.takes:
        return about.takes
    if about.choices:
        return ", ".join(f"`{_literal(choice)}`" for choice in about.choices)
    if about.bounds is not None:
        low, high = (_number(bound, key.unit) for bound in about.bounds)
        return f"{low} to {high}" + (f" {key.unit}" if key.unit not in ("", "bytes", "bytes/s") else "")
    return {bool: "`true`, `false`", str: "a text", Path: "a path"}.get(key.kind, "")


def _literal(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False)
        case _:
            return str(value)


def _number(value: float, unit: str) -> str:
    if unit.startswith("bytes") and isinstance(value, int):
        for size, name in _SIZES:
            if value >= size and value % size == 0:
                return f"{value // size:,} {name}"
        return str(value) if value == 0 else f"{value:,} byte{'s' if value > 1 else ''}"
    return f"{value:,}"
