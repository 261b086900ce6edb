"""Settings as properties texts: a configuration in RocketMQ's format, and the settings that a text in this format
requests.

The format is `java.util.Properties`, with a `key=value` on each line. Keys that RocketMQ has are written with its name
and its values, all other keys with our name and values. Both are understood.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Final

from dledger_base.config_keys.declared import Alias, ConfigValue
from dledger_base.config_keys.origins import read_properties
from dledger_broker.broker_conf import other_peers, own_peer_port, percent
from dledger_broker.config import KEYS, BrokerConfig
from dledger_broker.errors import ConfigError
from dledger_broker.kernel.live_config import text_of, typed
from dledger_remoting.errors import InvalidParameter, NoPermission
from dledger_remoting.route import MASTER_ID

_HIDDEN: Final = frozenset({"secret_file", "access_key_file", "metrics_token_file", "tls_key_file"})
_OF_SEVERAL_KEYS: Final = frozenset({other_peers, own_peer_port})


def asked_settings(body: bytes) -> dict[str, str]:
    """Return the requested settings, as texts by our keys. An empty text removes a setting.

    Raises `NoPermission` for keys that are not live, and `InvalidParameter` for unknown keys or invalid values.
    """
    try:
        table = read_properties(body.decode())
    except ValueError as error:
        raise InvalidParameter(f"configuration: {error}") from error
    if not table:
        raise InvalidParameter("configuration: there is nothing to set, expected lines of key=value")
    settings: dict[str, str] = {}
    for name, value in table.items():
        key, text = _setting(name, value)
        if settings.setdefault(key, text) != text:
            raise InvalidParameter(f"configuration: {name} = {text!r} contradicts {key} = {settings[key]!r}")
    return settings


def _setting(name: str, value: ConfigValue) -> tuple[str, str]:
    key = KEYS.called(name)
    if key not in KEYS.live:
        _refuse(name, key)
    if value == "":
        return key, ""
    try:
        parsed = KEYS.read({name: typed(key, text_of(value)) if name == key else value}).values[key]
    except ConfigError as error:
        raise InvalidParameter(str(error)) from error
    return key, text_of(parsed)


def _refuse(name: str, key: str) -> None:
    if key in KEYS.by_name and KEYS.by_name[key].about.is_limit:
        raise NoPermission(f"{name} is a limit that cannot be set: it is {KEYS.by_name[key].default} on every node")
    if key in KEYS.by_name:
        raise NoPermission(
            f"{name} is read when a node starts: set it in the file of each node, and restart them one by one"
        )
    near = difflib.get_close_matches(name, (*KEYS.live, *KEYS.aliases), n=1)
    raise InvalidParameter(f"{name} is no key of this broker" + (f", did you mean {near[0]}?" if near else ""))


def told_configuration(config: BrokerConfig, *, leads: bool) -> bytes:
    """Return a configuration in the form that RocketMQ's tools read. Names of files with secrets are left out.

    `brokerId` is the present id in the node's routes, not the id that its file gives for a follower.
    """
    properties = {"brokerRole": "SYNC_MASTER" if leads else "SLAVE", "enableDLegerCommitLog": "true"}
    for key in KEYS.by_name.values():
        if key.name not in _HIDDEN:
            text = _text(getattr(config, key.name))
            alias = next((candidate for candidate in key.about.aliases if candidate.read not in _OF_SEVERAL_KEYS), None)
            properties[key.name if alias is None else alias.name] = text if alias is None else _stock_text(alias, text)
    if leads:
        properties["brokerId"] = str(MASTER_ID)
    return "".join(f"{name}={_escaped(text)}\n" for name, text in sorted(properties.items())).encode()


def _stock_text(alias: Alias, text: str) -> str:
    """Return a value as it is written under RocketMQ's name of its key."""
    if alias.read is percent:
        return str(round(float(text) * 100))
    return next((word for word, ours in alias.words.items() if ours == text), text)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case Mapping():
            return ";".join(f"{name}-{target}" for name, target in value.items())
        case tuple():
            return ";".join(map(str, value))
        case _:
            return text_of(value)


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1].replace('\\"', '"')
