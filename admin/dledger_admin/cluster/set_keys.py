"""Keys that `dledger up --set KEY=VALUE` lays over the configuration, in the form of a `--config` file.

KEY is a key for every broker, or has the name of its table before a dot: `namesrv.KEY`, `proxy.KEY`, or
`nodes.NODE-ID.KEY`. VALUE is written as in TOML; anything that is no value of TOML is a text. An empty VALUE takes the
key away again.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence

from ..errors import WrongUsageError
from .config_files import Overrides, make_overrides
from .layout import ClusterLayout
from .toml_text import TomlTable, TomlValue

_SOURCE = "--set"


def set_keys(overrides: Overrides, settings: Sequence[str], layout: ClusterLayout) -> Overrides:
    """Return overrides with these keys.

    Raises `WrongUsageError` for a setting that is no KEY=VALUE, and `AdminError` for a key that cannot be set.
    """
    if not settings:
        return overrides
    table: TomlTable = tomllib.loads(overrides.text())
    for setting in settings:
        name, separator, text = setting.partition("=")
        path = [part.strip() for part in name.split(".")]
        if not separator or not all(path):
            raise WrongUsageError(f"--set {setting!r}: expected KEY=VALUE, such as retention_hours=48")
        _put(table, path, text.strip(), setting)
    return make_overrides(table, layout, _SOURCE)


def _put(table: TomlTable, path: list[str], text: str, setting: str) -> None:
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise WrongUsageError(f"--set {setting!r}: {part} is a key, and no table of keys")
        table = inner
    if text:
        table[path[-1]] = _read_value(text)
    else:
        table.pop(path[-1], None)


def _read_value(text: str) -> TomlValue:
    """Return the value that TOML has for a text, or the text itself."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text
