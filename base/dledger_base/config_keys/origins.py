"""Origins of the values of keys: a line of the file, the command line, or the default.

Files may have the form of RocketMQ's `broker.conf` and `namesrv.conf`: one `key=value` per line; lines that begin with
`#` or `!` are comments.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from dledger_base.config_keys.declared import ConfigValue, Key
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


SUFFIXES: Final = (".conf", ".properties")
"""Endings of the names of properties files."""


def read_properties(text: str) -> dict[str, ConfigValue]:
    """Return the values of a file by key; numbers and truth values get their type.

    If a key occurs twice, its last value counts.  Raises `ValueError` for a line without `=`.
    """
    table: dict[str, ConfigValue] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"line {number} is {line!r}, expected key=value")
        table[key.strip()] = _typed(value.strip())
    return table


def lines_of_properties(text: str) -> dict[str, int]:
    """Return the line of each key of a file, counted from 1; the last line if a key occurs twice."""
    rows = ((number, row.strip()) for number, row in enumerate(text.splitlines(), 1))
    return {row.partition("=")[0].strip(): number for number, row in rows if row and row[0] not in "#!"}


def _typed(text: str) -> ConfigValue:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text
