"""Runs client code for a command: its errors become one line, an interrupt ends it quietly."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Final, TypeVar

from dledger_base.similar_names import did_you_mean
from dledger_client import (
    Admin,
    ClientError,
    NoNameServerError,
    NoRouteError,
    NotFoundError,
    RefusedError,
    SendError,
    TlsError,
)
from dledger_client.cluster.connection import split_address
from dledger_client.cluster.leaders import LEADER_ID
from dledger_client.cluster.nameservers import parse_addresses
from dledger_remoting.codes import ResponseCode

from ..errors import AdminError
from ..operations.access import is_account_missing, is_right_refused, is_signature_refused
from ..operations.errors import OperationError
from ..output import say
from .completing import ask_quietly
from .signing import signing

Result = TypeVar("Result")

REFUSED_SECONDS: Final = 2.0
"""Time in seconds for which all name servers may refuse connections. One that starts refuses for less."""

REGISTRATION_SECONDS: Final = 10.0
"""Time limit in seconds for a leader, for commands right after `dledger up`. Sends wait as long."""

_PAUSE_SECONDS: Final = 0.1
_HEALTH_HINT: Final = "`dledger cluster health` says what is wrong"
_MISSING_TOPIC: Final = re.compile(r"topic '?([^' ]+)'? does not exist")
"""A topic's name in what brokers and our client say of one that is not there."""
_SIGNATURE_HINT: Final = (
    "check the secret in the file that DLEDGER_CREDENTIALS names, or --key-file; `dledger account rotate` makes another"
)
_ACCOUNT_HINT: Final = "who has the key file sees accounts with `dledger account list`, and makes them with `create`"
_RIGHTS_HINT: Final = "who has the key file gives rights with `dledger acl grant`; `dledger acl list` shows them"
_AUTHORITIES_HINT: Final = "DLEDGER_TLS_CA names the file with the authorities that are trusted here"
_NAME_SERVER_HINT: Final = "start one with `dledger up`, or say where one is with --namesrv"


def require_name_server(namesrv: str) -> None:
    """Raise `AdminError` once every name server has refused connections for `REFUSED_SECONDS`.

    A client repeats failed calls until its deadline. That is right for a service, but too long for a user with a
    mistyped address. Addresses that do not answer at all are left to the client.
    """
    try:
        addresses = [split_address(address) for address in parse_addresses(namesrv)]
    except ClientError as error:
        raise AdminError(str(error)) from error
    deadline = time.monotonic() + REFUSED_SECONDS
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
        if time.monotonic() + _PAUSE_SECONDS >= deadline:
            raise AdminError(f"no name server at {namesrv} ({', '.join(reasons)}): {_NAME_SERVER_HINT}")
        time.sleep(_PAUSE_SECONDS)


def run(
    work: Callable[[], Coroutine[object, None, Result]], namesrv: str, *, patience_s: float | None = None
) -> Result:
    """Run what `work` makes to its end; raises `AdminError` with the client's words when it fails.

    With `patience_s` it begins once a leader is registered, for which it waits so long: see `await_brokers`.
    """
    require_name_server(namesrv)

    async def run_work() -> Result:
        if patience_s is not None:
            await await_brokers(namesrv, patience_s)
        return await work()

    try:
        return asyncio.run(run_work())
    except OperationError as error:
        raise AdminError(str(error)) from error
    except ClientError as error:
        if isinstance(error, NoNameServerError) or isinstance(error.__cause__, NoNameServerError):
            raise AdminError(f"{error}: {_NAME_SERVER_HINT}") from error
        raise AdminError(f"{_format_error(error)}{_suggest_remedy(error, namesrv)}") from error


async def await_brokers(namesrv: str, seconds: float) -> None:
    """Return once a leader is registered with all topics that it has, which takes a moment after `dledger up`.

    Says on stderr what it waits for. Raises `AdminError` when the time is up.
    """
    async with Admin(namesrv, **signing()) as admin:
        last_reported = ""
        deadline = time.monotonic() + seconds
        while missing := await _find_missing_broker(admin):
            if missing != last_reported:
                say(f"waiting until {missing} registers with name server {namesrv}")
                last_reported = missing
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                raise AdminError(
                    f"{missing} did not register with name server {namesrv} within {seconds:g} s: {_HEALTH_HINT}"
                )
            await asyncio.sleep(_PAUSE_SECONDS)


async def _find_missing_broker(admin: Admin) -> str:
    """Return the broker group that must register before clients find anything, empty if a leader has registered.

    The topic that is named like its broker group is one of those that a leader has from the start.
    """
    groups = await admin.broker_groups()
    for name, group in groups.items():
        if LEADER_ID in group.broker_addrs:
            with suppress(NoRouteError):
                await admin.topic_route(name)
                return ""
    return f"a leader of {', '.join(sorted(groups))}" if groups else "a broker"


def _format_error(error: ClientError) -> str:
    """Return what the error says; for what does not exist the words suffice without the code."""
    return error.remark if isinstance(error, NotFoundError) else str(error)


def _suggest_remedy(error: ClientError, namesrv: str) -> str:
    """Return what to do about the error, as an end of its text, or nothing."""
    code = error.code if isinstance(error, RefusedError | SendError) else None
    match error:
        case _ if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return f": is {namesrv} a name server?"
        case TlsError():
            return f"; {_AUTHORITIES_HINT}"
        case _ if is_signature_refused(error):
            return f"; {_SIGNATURE_HINT}"
        case _ if is_account_missing(error):
            return f"; {_ACCOUNT_HINT}"
        case _ if is_right_refused(error):
            return f"; {_RIGHTS_HINT}"
        case NotFoundError() if code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return "; `dledger group list` shows those that there are"
        case NoRouteError():
            return f"; `dledger topic list` shows those that there are{_suggest_topic(error.topic, namesrv)}"
        case NotFoundError() if (topic_match := _MISSING_TOPIC.search(error.remark)) is not None:
            return _suggest_topic(topic_match[1], namesrv)
        case _ if error.retryable:
            return f"; {_HEALTH_HINT}"
        case _:
            return ""


async def is_missing(namesrv: str, topic: str) -> bool:
    """Return whether no registered broker has a topic."""
    async with Admin(namesrv, **signing()) as admin:
        try:
            await admin.topic_route(topic)
        except NoRouteError:
            return True
        return False


def say_similar_topic(name: str, namesrv: str) -> None:
    """Say that a send made a topic, if there is one with a similar name."""
    if question := _suggest_topic(name, namesrv):
        say(f"topic {name!r} was not there: its first message made it{question}")


def _suggest_topic(name: str, namesrv: str) -> str:
    """Return a question that names the topic which was probably meant, or nothing."""

    async def topics(admin: Admin) -> list[str]:
        return await admin.topics(include_system=False)

    return did_you_mean(name, [topic for topic in ask_quietly(namesrv, topics) if topic != name])


def with_admin(namesrv: str, work: Callable[[Admin], Awaitable[Result]], *, patience_s: float | None = None) -> Result:
    """Run `work` with a started `Admin`, as `run` does; raises what that raises."""

    async def session() -> Result:
        async with Admin(namesrv, **signing()) as admin:
            return await work(admin)

    return run(session, namesrv, patience_s=patience_s)
