"""Connecting to a name that has several addresses: all of them are tried, as RFC 8305 says.

The next address is tried a quarter of a second after the previous one, or as soon as that has failed. The first
connection is taken. An address that does not answer, such as one behind a dead IPv6 route, delays the next by no more
than that quarter.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

NEXT_ADDRESS_SECONDS: Final = 0.25
"""Seconds for which an address is tried alone before the next is tried as well: RFC 8305's connection attempt delay."""

Found: TypeAlias = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""An address as `socket.getaddrinfo` returns it."""
ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


def is_address(host: str) -> bool:
    """Return whether a host is an address already, which needs no look-up."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def addresses_of(host: str, port: int) -> list[Found]:
    """Look up a name, and return its addresses in the order to try them.

    Blocks: for a worker thread. Raises `OSError`.
    """
    return _interleave_families(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _interleave_families(addresses: Iterable[Found]) -> list[Found]:
    """Return the addresses, taken in turn from each family. The first address stays first, as the system prefers it."""
    families: dict[int, deque[Found]] = {}
    for address in dict.fromkeys(addresses):
        families.setdefault(address[0], deque()).append(address)
    ordered: list[Found] = []
    while any(families.values()):
        ordered += [untried.popleft() for untried in families.values() if untried]
    return ordered


async def connect(
    make_protocol: Callable[[], ProtocolT], host: str, port: int, context: ssl.SSLContext | None
) -> tuple[asyncio.Transport, ProtocolT]:
    """Connect to the first address of a host that accepts, over TLS if there is a context. Raises `OSError`.

    Event loops can do that too, but uvloop tries one address after the other, each until the kernel gives up.
    """
    loop = asyncio.get_running_loop()
    if is_address(host):
        return await loop.create_connection(make_protocol, host, port, ssl=context)
    return await connect_to(
        make_protocol, host, _interleave_families(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)), context
    )


async def connect_to(
    make_protocol: Callable[[], ProtocolT], host: str, addresses: Sequence[Found], context: ssl.SSLContext | None
) -> tuple[asyncio.Transport, ProtocolT]:
    """Connect to the first of a host's addresses that accepts. Raises `OSError`."""
    connected = await connected_socket(addresses)
    name = None if context is None else host
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_connection(make_protocol, sock=connected, ssl=context, server_hostname=name)
    except BaseException:
        connected.close()
        raise


async def connected_socket(addresses: Sequence[Found]) -> socket.socket:
    """Return a socket that is connected to one of the addresses. Raises the last `OSError` if none accepts."""
    untried = deque(addresses)
    attempts: set[asyncio.Task[socket.socket]] = set()
    failure: OSError | None = None
    try:
        while untried or attempts:
            if untried:
                attempts.add(asyncio.create_task(_open_socket(untried.popleft())))
            timeout = NEXT_ADDRESS_SECONDS if untried else None
            done, _ = await asyncio.wait(attempts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                attempts.remove(task)
                try:
                    return task.result()
                except OSError as error:
                    failure = error
        raise failure or OSError("the name has no address")
    finally:
        # nothing is awaited here, as a cancellation would then lose the socket that is returned
        for task in attempts:
            task.cancel()
            task.add_done_callback(_close_result)


def _close_result(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the socket of an attempt that came too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _open_socket(address: Found) -> socket.socket:
    family, kind, protocol, _, socket_address = address
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.settimeout(0.0)
        await asyncio.get_running_loop().sock_connect(connecting, socket_address)
    except BaseException:
        connecting.close()
        raise
    return connecting
