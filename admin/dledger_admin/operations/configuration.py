"""Configuration of brokers: the value of each key in effect, where it comes from, and the keys that are set live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dledger_base.config_keys.declared import Key
from dledger_client import Admin

from .errors import MissingError, OperationError

SET: Final = "set for the group"
DEFAULT: Final = "default"
OWN: Final = "the node's own configuration"
"""Sources of a value: a live setting, the declaration of the key, or what the node was started with."""


class LiveLine(msgspec.Struct, frozen=True):
    """A key that is set for a broker group."""

    broker_group: str
    key: str
    value: str


class LiveKey(msgspec.Struct, frozen=True):
    """A key that may be set while nodes run, with its meaning and its default."""

    key: str
    meaning: str
    default: str


class NodeValue(msgspec.Struct, frozen=True):
    """The value of a key on some nodes of a broker group: all nodes, or those that differ from the others.

    `source` is `set for the group`, `default`, or `the node's own configuration`.
    """

    key: str
    value: str
    source: str
    nodes: list[str]
    is_live: bool


class Configuration(msgspec.Struct, frozen=True):
    """Configuration of a broker group, by key. `silent` are registered addresses that did not tell theirs."""

    broker_group: str
    values: list[NodeValue]
    silent: list[str]


async def live_lines(admin: Admin, broker_groups: Sequence[str] = ()) -> list[LiveLine]:
    """Return the keys that are set for some broker groups, for all by default."""
    settings = await admin.settings(broker_groups=list(broker_groups) or None)
    return [LiveLine(group, key, text) for group, values in sorted(settings.items()) for key, text in values.items()]


def live_keys() -> list[LiveKey]:
    """Return the keys that may be set while nodes run, by name."""
    from dledger_broker.config import KEYS

    return sorted(
        (LiveKey(key.name, key.about.meaning, _default_of(key)) for key in KEYS.by_name.values() if key.about.live),
        key=lambda one: one.key,
    )


async def describe(admin: Admin, broker_group: str) -> Configuration:
    """Return the configuration of a broker group's nodes. Raises `MissingError` if no name server knows the group."""
    groups = await admin.broker_groups()
    if broker_group not in groups:
        raise MissingError(f"broker group {broker_group} is not registered, there are {', '.join(sorted(groups))}")
    found = await admin.configurations(broker_group)
    live = (await admin.settings(broker_groups=[broker_group]))[broker_group] if found else {}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for address, values in sorted(found.items()):
        for name, text in values.items():
            key, value, source = _judge(name, text, live)
            if key:
                rows.setdefault((key, value, source), []).append(address)
    known = {one.key for one in live_keys()}
    lines = [NodeValue(*row, nodes, row[0] in known) for row, nodes in sorted(rows.items())]
    silent = sorted(set(groups[broker_group].broker_addrs.values()) - found.keys())
    return Configuration(broker_group, lines, silent)


async def what_setting_does(admin: Admin, values: Mapping[str, str], broker_groups: Sequence[str] = ()) -> list[str]:
    """Describe what setting keys changes. An empty text removes a setting. Raises `OperationError` for other keys."""
    names = {one.key for one in live_keys()}
    for key in values:
        if key not in names:
            raise OperationError(f"{key!r} is no key that can be set while nodes run")
    settings = await admin.settings(broker_groups=list(broker_groups) or None)
    lines = []
    for group, before in sorted(settings.items()):
        for key, text in values.items():
            if text:
                known = f"instead of {before[key]}" if key in before else "instead of what each node's own file says"
                lines.append(f"{key} is {text} on all nodes of {group}, at once and after restarts, {known}")
            elif key in before:
                lines.append(f"{key} is no longer {before[key]} on {group}: each node's own file counts again")
            else:
                lines.append(f"nothing on {group}: {key} is not set there")
    return lines


async def put(admin: Admin, values: Mapping[str, str], broker_groups: Sequence[str] = ()) -> list[LiveLine]:
    """Set keys, and return all that are set since. An empty text removes a setting."""
    await admin.put_settings(values, broker_groups=list(broker_groups) or None)
    return await live_lines(admin, broker_groups)


def _judge(name: str, text: str, live: Mapping[str, str]) -> tuple[str, str, str]:
    """Return our key, its value as text, and its source; an empty key for what is no key of ours."""
    from dledger_base.config_keys.declared import ConfigValue
    from dledger_broker.config import KEYS
    from dledger_broker.errors import ConfigError
    from dledger_broker.kernel.live_config import text_of, typed

    key = KEYS.called(name)
    if key not in KEYS.by_name or KEYS.by_name[key].about.is_limit:
        return "", "", ""
    value = text
    if name != key:
        given: ConfigValue = {"true": True, "false": False}.get(text, text)
        try:
            value = text_of(KEYS.read({name: int(text) if text.isascii() and text.isdecimal() else given}).values[key])
        except (ConfigError, KeyError):
            return key, text, OWN
    if key in live:
        return key, live[key], SET
    default = _default_of(KEYS.by_name[key])
    is_default = value == default or typed(key, value) == KEYS.by_name[key].default
    return key, value, DEFAULT if is_default else OWN


def _default_of(key: Key) -> str:
    match key.default:
        case None:
            return ""
        case bool():
            return str(key.default).lower()
        case _:
            return str(key.default)
