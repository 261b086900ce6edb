"""Configuration: the value of each key on each node, where it comes from, and the keys that are set while nodes run."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from dledger_admin.operations import configuration
from dledger_admin.operations.configuration import LiveKey, LiveLine, NodeValue

from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, select_rows

LIST: Final = "/configuration"


class Wanted(Search, frozen=True):
    """Parameters of the list; without a `broker_group` the first one is shown. `changed` leaves defaults out."""

    broker_group: str = ""
    changed: bool = False


class Values(msgspec.Struct, frozen=True):
    """A page of the configuration of a broker group; `silent` are nodes that do not tell theirs.

    `live_keys` are those that can be set.
    """

    broker_group: str
    broker_groups: list[str]
    values: list[NodeValue]
    rows: Rows
    silent: list[str]
    live_keys: list[LiveKey]


class Setting(msgspec.Struct, frozen=True):
    """A key that is set for a broker group. An empty value removes the setting."""

    broker_group: str
    key: str
    value: str = ""


class Settings(msgspec.Struct, frozen=True):
    """All keys that are set for a broker group."""

    settings: list[LiveLine]


async def list_values(call: Call, wanted: Wanted) -> Values:
    """Return one page of the keys of a broker group."""
    names = sorted(await call.admin.broker_groups())
    group = wanted.broker_group or (names[0] if names else "")
    found = await configuration.describe(call.admin, group)
    chosen = [line for line in found.values if not wanted.changed or line.source != configuration.DEFAULT]
    shown, rows = select_rows(chosen, wanted, lambda line: line.key)
    return Values(group, names, shown, rows, found.silent, configuration.live_keys())


async def what_setting_does(call: Call, wanted: Setting) -> list[str]:
    """Return what a setting changes."""
    return await configuration.what_setting_does(call.admin, {wanted.key: wanted.value}, [wanted.broker_group])


async def put(call: Call, wanted: Setting) -> Settings:
    """Set a key, or remove its setting."""
    return Settings(await configuration.put(call.admin, {wanted.key: wanted.value}, [wanted.broker_group]))


def _page_with(wanted: Setting) -> str:
    """Return the path of the page that shows a key."""
    return f"{LIST}?{urlencode({'broker_group': wanted.broker_group, 'q': wanted.key})}"


def _told(wanted: Setting, _: Settings) -> str:
    done = f"set to {wanted.value}" if wanted.value else "not set any more"
    return f"Key {wanted.key} is {done} on broker group {wanted.broker_group}."


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Configuration of a broker group: values, and where each comes from.",
        wanted=Wanted,
        answer=list_values,
        template="configuration.html",
        section="configuration",
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/setting",
        summary="Set a key while nodes run",
        wanted=Setting,
        effects=what_setting_does,
        act=put,
        told=_told,
        after=_page_with,
        section="configuration",
    ),
]
