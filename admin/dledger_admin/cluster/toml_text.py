"""Writes the subset of TOML that configuration files of this project use: nested tables of plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

TomlValue: TypeAlias = str | int | float | bool | list["TomlValue"] | dict[str, "TomlValue"]
"""Value of a configuration file."""

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
    suffixes = {key: f"  # {comment}" for key, comment in (comments or {}).items()}
    return "\n".join(_format_lines(table, (), suffixes)) + "\n"


def _format_lines(table: Mapping[str, TomlValue], path: tuple[str, ...], suffixes: Mapping[str, str]) -> list[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{_format_key(key)} = {_format_value(value)}{suffixes.get(key, '')}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, dict):
            inner = (*path, _format_key(key))
            lines += ["", f"[{'.'.join(inner)}]{suffixes.get(key, '')}", *_format_lines(value, inner, {})]
    return lines


def _format_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _format_string(key)


def _format_string(text: str) -> str:
    # A TOML basic string is a JSON string, but for DEL, which JSON leaves bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_value(value: TomlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _format_string(value)
    if isinstance(value, list):
        return f"[{', '.join(_format_value(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_format_key(key)} = {_format_value(item)}' for key, item in value.items())}}}"
    return str(value)
