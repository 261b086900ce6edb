"""Clients: who is connected for which producer and consumer groups, and what a consumer says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from dledger_client import Admin, ConnectedProducer
from dledger_remoting.running import CLIENT_VERSION, CONSUME_ORDERLY, CONSUME_TYPE, POOL_SIZE, STARTED_AT

from .errors import MissingError

_MAX_CONCURRENT_GROUPS: Final = 32
"""Maximum number of groups that are asked for at the same time."""
_WORDS: Final = {
    CLIENT_VERSION: "version",
    CONSUME_TYPE: "asks for messages by",
    CONSUME_ORDERLY: "in order",
    POOL_SIZE: "handlers at once",
    STARTED_AT: "started",
}
"""Words for the properties that Java's clients and ours report."""


class Client(msgspec.Struct, frozen=True):
    """A client of a group. `heard_ms` is the time of a producer's last heartbeat, None for a consumer."""

    group: str
    role: Literal["consumes", "produces"]
    client_id: str
    address: str
    language: str
    heard_ms: int | None = None


class Running(msgspec.Struct, frozen=True):
    """Report of a consumer about itself: properties in words, and the stacks of its threads and tasks.

    A handler that is stuck shows in the stacks where it waits.
    """

    group: str
    client_id: str
    properties: dict[str, str]
    started_ms: int | None
    stacks: str


async def group_names(admin: Admin) -> dict[str, list[ConnectedProducer]]:
    """Return the names of all consumer and producer groups, each with its producers."""
    groups, producers = await asyncio.gather(admin.groups(), admin.producers())
    found: dict[str, list[ConnectedProducer]] = {name: [] for name in groups}
    for producer in producers:
        found.setdefault(producer.group, []).append(producer)
    return dict(sorted(found.items()))


async def of_groups(
    admin: Admin, names: Sequence[str], producers: Mapping[str, Sequence[ConnectedProducer]]
) -> list[Client]:
    """Return the clients of these groups, in the groups' order."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_GROUPS)

    async def clients(name: str) -> list[Client]:
        async with slots:
            members = await admin.members(name)
        consumers = [Client(name, "consumes", one.client_id, one.address, one.language) for one in members]
        return consumers + [
            Client(name, "produces", one.client_id, one.address, one.language, one.heard_ms) for one in producers[name]
        ]

    return [client for found in await asyncio.gather(*map(clients, names)) for client in found]


async def running(admin: Admin, group: str, client_id: str) -> Running:
    """Ask a consumer what it does (307). Raises `MissingError` for no member, `RefusedError` if it does not answer."""
    if client_id not in {member.client_id for member in await admin.members(group)}:
        raise MissingError(f"consumer group {group} has no member {client_id} now")
    told = await admin.running(group, client_id, stacks=True)
    started = told.properties.get(STARTED_AT, "")
    return Running(
        group,
        client_id,
        {
            words: told.properties[name]
            for name, words in _WORDS.items()
            if name in told.properties and name != STARTED_AT
        },
        int(started) if started.isascii() and started.isdecimal() else None,
        told.stacks or "",
    )
