"""Properties texts of a name server's configuration: the answer to 319, and the settings in 318.

Format: `java.util.Properties`, a `key=value` on each line. A key that RocketMQ has too is written under RocketMQ's
name, because RocketMQ's scripts search for that name. All other keys are written under our names. Both kinds of names
are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from dledger_base.config_keys.declared import Alias
from dledger_remoting.errors import BodyError, InvalidParameter

from .config import KEYS, NameServerConfig, ms_of_seconds

_HIDDEN_KEYS: Final = frozenset({"access_key_file", "metrics_token_file", "tls_key_file"})
"""Keys that are not shown, because they name files with secrets."""


def told_configuration(config: NameServerConfig) -> bytes:
    """Return a configuration as RocketMQ's tools read it, without the keys in `_HIDDEN_KEYS`."""
    lines = [
        f"{name}={json.dumps(text, ensure_ascii=False)[1:-1]}\n"
        for key in KEYS.by_name.values()
        if key.name not in _HIDDEN_KEYS
        for name, text in _format_key(key.name, key.about.aliases, getattr(config, key.name))
    ]
    return "".join(lines).encode()


def _format_key(key: str, aliases: tuple[Alias, ...], value: object) -> Iterator[tuple[str, str]]:
    """Yield a key's value under each of RocketMQ's names for it; under our name if none of them can express it."""
    stock = [(alias.name, text) for alias in aliases if (text := _stock_text(alias, value)) is not None]
    yield from stock or [(key, _format_value(value))]


def _stock_text(alias: Alias, value: object) -> str | None:
    """Return the text of a value under one of RocketMQ's names.

    Returns None if RocketMQ's key takes whole seconds, and the value is not a whole number of them.
    """
    if alias.read is ms_of_seconds and isinstance(value, int):
        return str(value // 1000) if value % 1000 == 0 else None
    return next((word for word, ours in alias.words.items() if ours == value), _format_value(value))


def _format_value(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case Mapping():
            return ";".join(f"{name}-{target}" for name, target in value.items())
        case _:
            return str(value)


def asked_values(body: bytes) -> dict[str, str]:
    """Parse the `key=value` lines of a properties text. Raises `BodyError`, `InvalidParameter`."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"the configuration text is not UTF-8: {error}") from error
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if key.strip() and not key.startswith("#"):
            if not separator:
                raise InvalidParameter(f"configuration line {line!r}, expected key=value")
            values[key.strip()] = value.strip()
    return values
