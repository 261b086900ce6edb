"""Where the value of each key comes from: a line of the file, the command line, or its default."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from dledger.config_keys.declared import Key
from dledger.config_keys.reading import Keys, Reading


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from; `line` and `name` say where in a file, and under which name, and are None elsewhere."""

    source: Literal["default", "file", "command line"]
    line: int | None = None
    name: str | None = None


def origins(keys: Keys, reading: Reading, lines: Mapping[str, int], flags: Collection[str] = ()) -> dict[str, Origin]:
    """The origin of each key's value, with what was read of a file, its lines by name, and keys of the command line."""
    return {key.name: _origin(key, reading, lines, flags) for key in keys.by_name.values()}


def _origin(key: Key, reading: Reading, lines: Mapping[str, int], flags: Collection[str]) -> Origin:
    if key.name in flags:
        return Origin("command line")
    if key.name not in reading.names:
        return Origin("default")
    name = reading.names[key.name]
    return Origin("file", lines.get(name), name)


def lines_of_toml(text: str, table: str | None = None) -> dict[str, int]:
    """The line where each key of a TOML document begins, counted from 1; of its table `table`, if it has one.

    Python's reader does not tell lines.  What is valid up to a line ends there: a key that is not in what was valid
    before begins behind that.  So values over many lines, and what merely looks like a key inside one, are told apart.
    """
    found: dict[str, int] = {}
    begun, rows = 1, text.splitlines(keepends=True)
    whole = tomllib.loads(text)
    for number in range(1, len(rows) + 1):
        try:
            document = tomllib.loads("".join(rows[:number]))
        except tomllib.TOMLDecodeError:
            continue
        for name in document.get(table, {}) if table is not None and table in whole else document:
            found.setdefault(name, begun)
        begun = number + 1
    return found
