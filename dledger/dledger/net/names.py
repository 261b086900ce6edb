"""Names of a process's own that the DNS may not have yet: waiting for them.

A pod's own name is published a moment after the pod started, or only once it is ready.  A name that resolves to nothing
is therefore waited for, as the names of peers are, and the log says so; what no DNS will ever answer is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Coroutine
from ipaddress import ip_address
from threading import Thread

from dledger.errors import ConfigError

RETRY_S = 1.0
REPEAT_S = 60.0
"""How often the log says what is waited for."""

_NUMBERS = re.compile(r"[0-9.]*|.*:.*", re.DOTALL)
"""What is an address, if anything."""
_NO_NAME = re.compile(r"[\s/\\@\[\]]")

_logger = logging.getLogger(__name__)


async def first_address(key: str, host: str, family: socket.AddressFamily = socket.AF_UNSPEC) -> str:
    """The first address of a host; waits as long as its name has none.

    Raises `ConfigError` that names `key` if waiting is in vain: an address of another family, or no possible name.
    """
    kind = "IPv4 address" if family is socket.AF_INET else "address"
    if _NUMBERS.fullmatch(host):
        if _is_address(host, family):
            return host
        raise _in_vain(key, host, f"it is no {kind}")
    if _NO_NAME.search(host):
        raise _in_vain(key, host, "no host has such a name")
    loop = asyncio.get_running_loop()
    say_at = loop.time()
    while True:
        try:
            return await _resolve(host, family)
        except UnicodeError as error:
            raise _in_vain(key, host, "no host has such a name") from error
        except OSError as error:
            if loop.time() >= say_at:
                say_at = loop.time() + REPEAT_S
                _logger.warning(
                    "event=waits_for_name key=%s host=%r error=%r consequence=%r",
                    key,
                    host,
                    f"it has no {kind} yet: {error.strerror or error}",
                    "this process starts once the name is known; if it never will be, correct the configuration",
                )
        await asyncio.sleep(RETRY_S)


def _in_vain(key: str, host: str, why: str) -> ConfigError:
    return ConfigError(f"{key} = {host!r}: {why}; set it to an address of this machine, or to a name of it")


async def outlasts(start: Coroutine[object, object, None], told: asyncio.Event) -> bool:
    """Wait for a start, which may take as long as it wants; False if `told` to stop came first and ended it."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            return True
        return False
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _resolve(host: str, family: socket.AddressFamily) -> str:
    """Look a name up on a thread of its own that nobody waits for: a silent DNS must not hold up the process's end."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def settle(result: str | Exception) -> None:
        if found.done():
            return
        if isinstance(result, str):
            found.set_result(result)
        else:
            found.set_exception(result)

    def look_up() -> None:
        result: str | Exception
        try:
            result = str(socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            result = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result)

    Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    return await found


def _is_address(host: str, family: socket.AddressFamily) -> bool:
    try:
        version = ip_address(host.partition("%")[0]).version
    except ValueError:
        return False
    return version == 4 or family is not socket.AF_INET
