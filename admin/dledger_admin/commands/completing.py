"""Names that a shell completes: those of topics, groups, broker groups and nodes.

Somebody is typing: whoever does not answer within a second is not waited for, and whatever goes wrong, there are no
names and not a word.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import click

from dledger_client import Admin
from dledger_client.connection import split_address
from dledger_client.nameservers import parse_addresses

from ..cluster.lifecycle import services
from ..cluster.manifest import require_manifest
from .signing import signing

SECONDS: Final = 1.0
"""How long a cluster has for its answer."""

_CONNECT_SECONDS: Final = 0.3

Names: TypeAlias = Callable[[Admin], Awaitable[Iterable[str]]]
"""Asks a cluster for names."""


def topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The topics of applications that begin so."""
    del param
    return _from_cluster(ctx, incomplete, lambda admin: admin.topics(include_system=False))


def topic_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """As `topics`, of the last in a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in topics(ctx, param, last)]


def consumer_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The consumer groups that begin so."""
    del param
    return _from_cluster(ctx, incomplete, lambda admin: admin.groups())


def broker_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The broker groups that begin so."""
    del param
    return _from_cluster(ctx, incomplete, lambda admin: admin.broker_groups())


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The nodes that begin so, and the name server, of the cluster in the directory that is given before."""
    del param
    data = ctx.params.get("data")
    if data is None:
        return []
    with suppress(Exception):
        return _beginning(services(require_manifest(Path(data)).layout(Path(data))), incomplete)
    return []


def _from_cluster(ctx: click.Context, incomplete: str, names: Names) -> list[str]:
    """Ask the cluster that the command would use."""
    namesrv = ctx.params.get("namesrv")
    if not namesrv:
        return []
    with _without_a_word(), suppress(Exception):
        if any(_listens(split_address(address)) for address in parse_addresses(namesrv)):
            return _beginning(asyncio.run(_ask(namesrv, names)), incomplete)
    return []


async def _ask(namesrv: str, names: Names) -> Iterable[str]:
    async with asyncio.timeout(SECONDS), Admin(namesrv, **signing()) as admin:
        return await names(admin)


def _listens(address: tuple[str, int]) -> bool:
    """Tell whether somebody takes connections: a client would ask again until its time is up."""
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def _without_a_word() -> Iterator[None]:
    """Log nothing meanwhile: it would appear between the words that are being typed."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
