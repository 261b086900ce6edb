"""Properties texts of a name server's configuration: what tools are told (319), and what they ask to be set (318).

Format: `java.util.Properties`, a `key=value` on each line. Keys that RocketMQ has are told by its name, under which its
scripts look for them, all others by ours; both are understood.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from dledger.config_keys.declared import Alias
from dledger_remoting.errors import BodyError, InvalidParameter

from .config import KEYS, NameServerConfig, ms_of_seconds

_NOT_TOLD: Final = frozenset({"access_key_file", "tls_key_file"})
"""Where secrets lie is nobody's business."""


def told_configuration(config: NameServerConfig) -> bytes:
    """A configuration as RocketMQ's tools read it. Files with secrets are left out."""
    lines = [
        f"{name}={json.dumps(text, ensure_ascii=False)[1:-1]}\n"
        for key in KEYS.by_name.values()
        if key.name not in _NOT_TOLD
        for name, text in _told(key.name, key.about.aliases, getattr(config, key.name))
    ]
    return "".join(lines).encode()


def _told(key: str, aliases: tuple[Alias, ...], value: object) -> Iterator[tuple[str, str]]:
    """A key's value under each name that RocketMQ has for it; under ours if there is none that could say it."""
    stock = [(alias.name, text) for alias in aliases if (text := _stock_text(alias, value)) is not None]
    yield from stock or [(key, _text(value))]


def _stock_text(alias: Alias, value: object) -> str | None:
    """A value as it stands under one of RocketMQ's names; None if that cannot say it: it takes whole seconds."""
    if alias.read is ms_of_seconds and isinstance(value, int):
        return str(value // 1000) if value % 1000 == 0 else None
    return next((word for word, ours in alias.words.items() if ours == value), _text(value))


def _text(value: object) -> str:
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
    """The `key=value` lines of a properties text. Raises `BodyError`, `InvalidParameter`."""
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
