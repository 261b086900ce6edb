"""Runs client code for a command: its errors become one line, an interrupt ends it quietly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from dledger_client import Admin, ClientError, NoNameServerError

from ..errors import AdminError

Result = TypeVar("Result")


def run(work: Coroutine[object, None, Result]) -> Result:
    """Run `work` to its end; raises `AdminError` with the client's words when it fails."""
    try:
        return asyncio.run(work)
    except ClientError as error:
        if isinstance(error, NoNameServerError) or isinstance(error.__cause__, NoNameServerError):
            raise AdminError(f"{error}: start one with `dledger up`, or say where one is with --namesrv") from error
        raise AdminError(str(error)) from error


def with_admin(namesrv: str, work: Callable[[Admin], Awaitable[Result]]) -> Result:
    """Run `work` with a started `Admin`; raises what `run` raises."""

    async def session() -> Result:
        async with Admin(namesrv) as admin:
            return await work(admin)

    return run(session())
