"""Addresses in configurations: a host and a port."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.errors import ConfigError
from dledger_remoting.hosts import split_host_port


class Address(NamedTuple):
    """A host name or address and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(key: str, value: ConfigValue) -> Address:
    """Parse "host:port". An IPv6 address must be in brackets. Raises `ConfigError` that names `key`."""
    try:
        return Address(*split_host_port(value if isinstance(value, str) else ""))
    except ValueError as error:
        raise ConfigError(f"{key} = {value!r}, {error}") from error


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached only from this machine. A name other than `localhost` is not resolved:
    False.
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Return whether a host means all addresses of this machine. Other nodes cannot connect to this host."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
