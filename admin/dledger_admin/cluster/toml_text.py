"""Writes the subset of TOML that configuration files of this project use: nested tables of plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

TomlValue: TypeAlias = str | int | float | bool | list["TomlValue"] | dict[str, "TomlValue"]
"""What a configuration file may hold."""

TomlTable: TypeAlias = dict[str, TomlValue]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def merge(base: Mapping[str, TomlValue], override: Mapping[str, TomlValue]) -> TomlTable:
    """Return `base` with the values of `override`; tables are merged key by key, everything else is replaced."""
    merged: TomlTable = dict(base)
    for key, value in override.items():
        present = merged.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            merged[key] = merge(present, value)
        else:
            merged[key] = value
    return merged


def dump(table: Mapping[str, TomlValue], comments: Mapping[str, str] | None = None) -> str:
    """Return `table` as TOML: plain values first, then each sub-table under its header.

    A key of it may have a comment, one line, which stands behind its value or header.
    """
    behind = {key: f"  # {comment}" for key, comment in (comments or {}).items()}
    return "\n".join(_lines(table, (), behind)) + "\n"


def _lines(table: Mapping[str, TomlValue], path: tuple[str, ...], behind: Mapping[str, str]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}{behind.get(key, '')}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = (*path, _key(key))
            lines += ["", f"[{'.'.join(inner)}]{behind.get(key, '')}", *_lines(value, inner, {})]
    return lines


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # A TOML basic string is a JSON string, but for DEL, which JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: TomlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"
    return str(value)
