"""Kinds of configuration files: of brokers, name servers and proxies, each judged by the component that reads it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dledger_base.config_keys.origins import SUFFIXES, Origin, read_properties
from dledger_base.config_keys.reading import Keys
from dledger_base.tls import TlsContext
from dledger_broker import config as broker
from dledger_broker.broker_conf import WITHOUT_EFFECT
from dledger_broker.errors import ConfigError as BrokerConfigError
from dledger_namesrv import config as namesrv

from ..errors import require

_PROXY_TABLE: Final = "proxy"
_PROXY_PACKAGES: Final = ("aiohttp", "google.protobuf", "grpclib", "prometheus_client", "uvloop")


@dataclass(frozen=True, slots=True)
class Kind:
    """Reader of one kind of file. `load` takes the file and what the command line overrides.

    `read_files` reads the files that the configuration names, and returns the TLS contexts among them. `load`,
    `origins` and `read_files` raise `error`.
    """

    name: str
    keys: Keys
    error: type[Exception]
    load: Callable[[Path, Mapping[str, Any]], Any]
    origins: Callable[[Path, Mapping[str, Any]], dict[str, Origin]]
    read_files: Callable[[Any], Iterable[TlsContext]]
    warnings: Callable[[Any], list[str]]
    flags: frozenset[str] = frozenset()
    """Keys that the command line of such a process may override."""


def kind_of(file: Path) -> Kind:
    """Return the kind of a file. One that cannot be read counts as a broker's, whose reader then says what is wrong."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        table = read_properties(text) if file.suffix in SUFFIXES else tomllib.loads(text)
    except (OSError, ValueError):
        return BROKER
    if _is_proxy(table):
        require("proxy", *_PROXY_PACKAGES)
        return _proxy()
    return NAMESRV if _BROKER_ONLY_KEYS.isdisjoint(table) else BROKER


def _is_proxy(table: Mapping[str, Any]) -> bool:
    """Return whether a file is a proxy's: by its table, by a key that only proxies have, or by `namesrv` as a text.

    Without the extra `proxy` only the table tells it.
    """
    if isinstance(table.get(_PROXY_TABLE), dict):
        return True
    if not all(find_spec(name.partition(".")[0]) for name in _PROXY_PACKAGES):
        return False
    keys = _proxy().keys
    known = {*keys.by_name, *keys.aliases}
    if not table.keys().isdisjoint(known - _BROKER_KEYS - _NAMESRV_KEYS):
        return True
    return table.keys() <= known and isinstance(table.get("namesrv"), str)


def _proxy() -> Kind:
    from dledger_proxy import config as proxy  # needs the extra `proxy`

    return Kind(
        "proxy",
        proxy.KEYS,
        proxy.ConfigError,
        proxy.load_config,
        proxy.origins_of,
        lambda config: proxy.read_files(config).contexts,
        lambda config: list(config.ignored),
        frozenset({"host"}),
    )


BROKER: Final = Kind(
    "broker",
    broker.KEYS,
    BrokerConfigError,
    lambda file, _: broker.load_config(file),
    lambda file, _: broker.origins_of(file),
    lambda config: broker.read_files(config).contexts,
    broker.BrokerConfig.warnings,
)
NAMESRV: Final = Kind(
    "name server",
    namesrv.KEYS,
    namesrv.ConfigError,
    namesrv.load_config,
    namesrv.origins_of,
    lambda config: namesrv.read_files(config).contexts,
    lambda config: list(config.ignored),
    frozenset({"host", "port", "data"}),
)
_BROKER_KEYS: Final = frozenset({*broker.KEYS.by_name, *broker.KEYS.aliases, *WITHOUT_EFFECT})
_NAMESRV_KEYS: Final = frozenset({*namesrv.KEYS.by_name, *namesrv.KEYS.aliases, namesrv.TABLE})
_BROKER_ONLY_KEYS: Final = _BROKER_KEYS - _NAMESRV_KEYS
