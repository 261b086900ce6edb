"""Host names of the process's own machine that the DNS may not have yet: waiting for them.

A pod's own name is published a moment after the pod started, or only once the pod is ready. So a name that does not
resolve is waited for, as the names of peers are, and the log says so. A name that no DNS will ever resolve is an error.
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

from dledger_base.errors import ConfigError

RETRY_S = 1.0
REPEAT_S = 60.0
"""Interval in seconds at which the log says which name is waited for."""

_ADDRESS_ONLY = re.compile(r"[0-9.]*|.*:.*", re.DOTALL)
"""Pattern of texts that can only be an address, not a name."""
_NEVER_IN_NAMES = re.compile(r"[\s/\\@\[\]]")

_logger = logging.getLogger(__name__)


async def first_address(key: str, host: str, family: socket.AddressFamily = socket.AF_UNSPEC) -> str:
    """Return the first address of a host. Waits while its name has no address.

    Raises `ConfigError` that names `key` if waiting is useless: an address of another family, or an impossible name.
    """
    kind = "IPv4 address" if family is socket.AF_INET else "address"
    if _ADDRESS_ONLY.fullmatch(host):
        if _is_address(host, family):
            return host
        raise _name_error(key, host, f"it is no {kind}")
    if _NEVER_IN_NAMES.search(host):
        raise _name_error(key, host, "no host has such a name")
    loop = asyncio.get_running_loop()
    next_warning_at = loop.time()
    while True:
        try:
            return await _resolve(host, family)
        except UnicodeError as error:
            raise _name_error(key, host, "no host has such a name") from error
        except OSError as error:
            if loop.time() >= next_warning_at:
                next_warning_at = loop.time() + REPEAT_S
                _logger.warning(
                    "event=waits_for_name key=%s host=%r error=%r consequence=%r",
                    key,
                    host,
                    f"it has no {kind} yet: {error.strerror or error}",
                    "this process starts once the name is known; if it will never be, correct the configuration",
                )
        await asyncio.sleep(RETRY_S)


def _name_error(key: str, host: str, reason: str) -> ConfigError:
    return ConfigError(f"{key} = {host!r}: {reason}; set it to an address of this machine, or to a name of it")


async def outlasts(start: Coroutine[object, object, None], stop_requested: asyncio.Event) -> bool:
    """Wait for a start, which may take any time. If `stop_requested` is set first, ends the start and returns False."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(stop_requested.wait())
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
    """Resolve a name on a thread of its own that nobody waits for.

    A silent DNS must not delay the end of the process.
    """
    loop = asyncio.get_running_loop()
    address: asyncio.Future[str] = loop.create_future()

    def settle(result: str | Exception) -> None:
        if address.done():
            return
        if isinstance(result, str):
            address.set_result(result)
        else:
            address.set_exception(result)

    def look_up() -> None:
        result: str | Exception
        try:
            result = str(socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            result = error
        with contextlib.suppress(RuntimeError):  # RuntimeError: the loop is closed
            loop.call_soon_threadsafe(settle, result)

    Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    return await address


def _is_address(host: str, family: socket.AddressFamily) -> bool:
    try:
        version = ip_address(host.partition("%")[0]).version
    except ValueError:
        return False
    return version == 4 or family is not socket.AF_INET
