"""Runs client code for a command: its errors become one line, an interrupt ends it quietly."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, TypeVar

import click

from dledger_client import (
    Admin,
    ClientError,
    NoNameServerError,
    NoRouteError,
    NotFoundError,
    RefusedError,
    SendError,
)
from dledger_client.connection import split_address
from dledger_client.leaders import LEADER_ID
from dledger_client.nameservers import parse_addresses
from dledger_remoting.codes import ResponseCode
from dledger_remoting.route import BrokerData

from ..errors import AdminError
from .signing import signing

Result = TypeVar("Result")

REFUSED_SECONDS: Final = 2.0
"""How long every name server may refuse connections before a command gives up: one that starts takes less."""

REGISTRATION_SECONDS: Final = 10.0
"""How long commands that a user gives right after `dledger up` wait for a leader, as a send does."""

_PAUSE_SECONDS: Final = 0.1
_HINT: Final = "start one with `dledger up`, or say where one is with --namesrv"


def require_name_server(namesrv: str) -> None:
    """Raise `AdminError` once every name server has refused connections for `REFUSED_SECONDS`.

    A client repeats what fails until its deadline, which is right for a service that runs and too long for somebody who
    mistyped an address. What does not answer at all is left to the client.
    """
    try:
        addresses = [split_address(address) for address in parse_addresses(namesrv)]
    except ClientError as error:
        raise AdminError(str(error)) from error
    give_up = time.monotonic() + REFUSED_SECONDS
    while True:
        reasons: dict[str, None] = {}
        for address in addresses:
            try:
                socket.create_connection(address, timeout=REFUSED_SECONDS).close()
            except TimeoutError:
                return
            except OSError as error:
                reasons[error.strerror or str(error)] = None
            else:
                return
        if time.monotonic() + _PAUSE_SECONDS >= give_up:
            raise AdminError(f"no name server at {namesrv} ({', '.join(reasons)}): {_HINT}")
        time.sleep(_PAUSE_SECONDS)


def run(
    work: Callable[[], Coroutine[object, None, Result]], namesrv: str, *, patience_s: float | None = None
) -> Result:
    """Run what `work` makes to its end; raises `AdminError` with the client's words when it fails.

    With `patience_s` it begins once a leader is registered, for which it waits so long: see `await_brokers`.
    """
    require_name_server(namesrv)

    async def begin() -> Result:
        if patience_s is not None:
            await await_brokers(namesrv, patience_s)
        return await work()

    try:
        return asyncio.run(begin())
    except ClientError as error:
        if isinstance(error, NoNameServerError) or isinstance(error.__cause__, NoNameServerError):
            raise AdminError(f"{error}: {_HINT}") from error
        raise AdminError(f"{_text(error)}{_advice(error, namesrv)}") from error


async def await_brokers(namesrv: str, seconds: float) -> None:
    """Return once a leader is registered with all topics that it has, which takes a moment after `dledger up`.

    What is waited for is said on stderr. Raises `AdminError` when the time is up.
    """
    async with Admin(namesrv, **signing()) as admin:
        said = ""
        give_up = time.monotonic() + seconds
        while missing := await _missing_broker(admin):
            if missing != said:
                click.echo(f"waiting until {missing} registers with name server {namesrv}", err=True)
                said = missing
            if time.monotonic() + _PAUSE_SECONDS >= give_up:
                raise AdminError(
                    f"{missing} did not register with name server {namesrv} within {seconds:g} s: "
                    "`dledger status` shows which nodes run"
                )
            await asyncio.sleep(_PAUSE_SECONDS)


async def _missing_broker(admin: Admin) -> str:
    """Who is to register before clients find anything, nobody if a leader has.

    The topic that is named like its broker group is one of those that a leader has from the start.
    """
    groups = await admin.broker_groups()
    for name, group in groups.items():
        if LEADER_ID in group.broker_addrs:
            with suppress(NoRouteError):
                await admin.topic_route(name)
                return ""
    return f"a leader of {', '.join(sorted(groups))}" if groups else "a broker"


def _text(error: ClientError) -> str:
    """Return what the error says; for what does not exist the words suffice without the code."""
    return error.remark if isinstance(error, NotFoundError) else str(error)


def _advice(error: ClientError, namesrv: str) -> str:
    """Return what to do about the error, as an end of its text, or nothing."""
    code = error.code if isinstance(error, RefusedError | SendError) else None
    match error:
        case _ if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return f": is {namesrv} a name server?"
        case NotFoundError() if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return "; `dledger group list` shows those that there are"
        case NoRouteError():
            return "; `dledger topic list` shows those that there are"
        case _:
            return ""


async def registered_groups(admin: Admin) -> dict[str, BrokerData]:
    """Return the broker groups that the name server knows; raises `AdminError` if there is none."""
    groups = await admin.broker_groups()
    if not groups:
        raise AdminError("no broker group is registered with the name server: `dledger status` shows which nodes run")
    return groups


def with_admin(namesrv: str, work: Callable[[Admin], Awaitable[Result]], *, patience_s: float | None = None) -> Result:
    """Run `work` with a started `Admin`, as `run` does; raises what that raises."""

    async def session() -> Result:
        async with Admin(namesrv, **signing()) as admin:
            return await work(admin)

    return run(session, namesrv, patience_s=patience_s)
