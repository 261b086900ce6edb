"""Files in the form of RocketMQ's `broker.conf` and `namesrv.conf`.

One `key=value` per line; lines that begin with `#` or `!` are comments.
"""

from __future__ import annotations

from typing import Final

from dledger_base.config_keys.declared import ConfigValue

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
