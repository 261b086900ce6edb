"""Names that a shell completes: those of topics, groups, broker groups and nodes.

The user is typing. So no server is waited for longer than a second, and every failure means no names and no message.
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
from dledger_client.cluster.connection import split_address
from dledger_client.cluster.nameservers import parse_addresses

from ..cluster.lifecycle import services
from ..cluster.manifest import require_manifest
from ..contexts import load
from ..errors import AdminError
from .signing import signing

SECONDS: Final = 1.0
"""Time limit for the cluster's answer."""

_CONNECT_SECONDS: Final = 0.3

Names: TypeAlias = Callable[[Admin], Awaitable[Iterable[str]]]
"""Asks a cluster for names."""


def topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of applications that begin with `incomplete`."""
    del param
    return _complete_from_cluster(ctx, incomplete, lambda admin: admin.topics(include_system=False))


def topic_lists(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last topic of a list with commas, as `topics` does."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in topics(ctx, param, last)]


def consumer_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups that begin with `incomplete`."""
    del param
    return _complete_from_cluster(ctx, incomplete, lambda admin: admin.groups())


def broker_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the broker groups that begin with `incomplete`."""
    del param
    return _complete_from_cluster(ctx, incomplete, lambda admin: admin.broker_groups())


def contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the contexts that begin with `incomplete`."""
    del ctx, param
    with suppress(AdminError):
        return _filter_by_prefix(load().contexts, incomplete)
    return []


def nodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes, and the name server, that begin with `incomplete`, of the cluster in `--data`."""
    del param
    data = ctx.params.get("data")
    if data is None:
        return []
    with suppress(Exception):
        return _filter_by_prefix(services(require_manifest(Path(data)).layout(Path(data))), incomplete)
    return []


def _complete_from_cluster(ctx: click.Context, incomplete: str, names: Names) -> list[str]:
    """Return the names that begin with `incomplete`, from the cluster that the command would use."""
    namesrv = ctx.params.get("namesrv")
    return _filter_by_prefix(ask_quietly(namesrv, names), incomplete) if namesrv else []


def ask_quietly(namesrv: str, names: Names) -> list[str]:
    """Ask a cluster for names; return none if it does not answer within `SECONDS`."""
    with _logging_disabled(), suppress(Exception):
        if any(_is_listening(split_address(address)) for address in parse_addresses(namesrv)):
            return list(asyncio.run(_fetch_names(namesrv, names)))
    return []


async def _fetch_names(namesrv: str, names: Names) -> Iterable[str]:
    async with asyncio.timeout(SECONDS), Admin(namesrv, **signing()) as admin:
        return await names(admin)


def _is_listening(address: tuple[str, int]) -> bool:
    """Tell whether a server accepts connections. A client would try again until its time limit."""
    try:
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def _logging_disabled() -> Iterator[None]:
    """Log nothing meanwhile: it would appear between the words that are being typed."""
    former_level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(former_level)


def _filter_by_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
