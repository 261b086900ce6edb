"""Lets the components judge their configuration before `up` writes or starts anything."""

from __future__ import annotations

from collections.abc import Mapping

from .toml_text import TomlValue


def check_broker_config(table: Mapping[str, TomlValue], node_id: str) -> None:
    """Raise `AdminError` with the broker's own words when it would refuse `table`."""


def check_namesrv_config(table: Mapping[str, TomlValue]) -> None:
    """Raise `AdminError` with the name server's own words when it would refuse `table`."""
