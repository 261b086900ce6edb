"""Origins of the values of keys: a line of the file, the command line, or the default."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from dledger_base.config_keys.declared import Key
from dledger_base.config_keys.reading import Keys, Reading


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a value. `line` and `name` are its line in a file and its name there, else None."""

    source: Literal["default", "file", "command line"]
    line: int | None = None
    name: str | None = None


def origins(keys: Keys, reading: Reading, lines: Mapping[str, int], flags: Collection[str] = ()) -> dict[str, Origin]:
    """Return the origin of each key's value.

    `reading` is the content of a file, `lines` has its lines by name, and `flags` are the keys of the command line."""
    return {key.name: _origin(key, reading, lines, flags) for key in keys.by_name.values()}


def _origin(key: Key, reading: Reading, lines: Mapping[str, int], flags: Collection[str]) -> Origin:
    if key.name in flags:
        return Origin("command line")
    if key.name not in reading.names:
        return Origin("default")
    name = reading.names[key.name]
    return Origin("file", lines.get(name), name)


def lines_of_toml(text: str, table: str | None = None) -> dict[str, int]:
    """Return the line where each key of a TOML document, or of its table `table` if it has one, begins, from 1.

    Python's reader does not report lines.  So each prefix of the document is read. A key that first appears in a valid
    prefix begins behind the valid prefix before it.  This also finds values over many lines, and ignores texts inside
    values that look like keys.
    """
    lines: dict[str, int] = {}
    key_line, rows = 1, text.splitlines(keepends=True)
    all_keys = tomllib.loads(text)
    for number in range(1, len(rows) + 1):
        try:
            document = tomllib.loads("".join(rows[:number]))
        except tomllib.TOMLDecodeError:
            continue
        for name in document.get(table, {}) if table is not None and table in all_keys else document:
            lines.setdefault(name, key_line)
        key_line = number + 1
    return lines
