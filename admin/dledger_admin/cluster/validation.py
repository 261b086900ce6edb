"""Lets the components judge their configuration before `up` writes or starts anything."""

from __future__ import annotations

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.config import build_config
from dledger_broker.errors import ConfigError
from dledger_namesrv.config import ConfigError as NamesrvConfigError
from dledger_namesrv.config import build_config as build_namesrv_config
from dledger_namesrv.config import read_keys as read_namesrv_keys

from ..errors import AdminError, require


def check_broker_config(table: dict[str, ConfigValue], node_id: str) -> list[str]:
    """Return what keys in `table` mean now that meant something else in an earlier version.

    Raises `AdminError` with the broker's own words when it would refuse `table`.
    """
    try:
        return build_config(table).changed_meanings()
    except ConfigError as error:
        raise AdminError(f"configuration of {node_id}: {error}") from error


def check_proxy_config(table: dict[str, ConfigValue]) -> None:
    """Raise `AdminError` with the proxy's own words when it would refuse `table`, or if its extra is missing."""
    require("proxy", "aiohttp", "google.protobuf", "grpclib", "prometheus_client", "uvloop")
    from dledger_proxy.config import KEYS, build_config
    from dledger_proxy.config import ConfigError as ProxyConfigError

    try:
        build_config(KEYS.read(table).values)
    except ProxyConfigError as error:
        raise AdminError(f"configuration of the proxy: {error}") from error


def check_namesrv_config(table: dict[str, ConfigValue]) -> None:
    """Raise `AdminError` with the name server's own words when it would refuse `table`."""
    try:
        build_namesrv_config(read_namesrv_keys(table).values)
    except NamesrvConfigError as error:
        raise AdminError(f"configuration of the name server: {error}") from error
