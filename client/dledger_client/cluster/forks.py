"""Sockets at a fork: a forked process gives up its copies of the sockets of its parent's clients.

A copy keeps a connection open after the parent has closed it: the broker then notices only when the forked process
ends. Something in the forked process could also write to it, in the middle of a request of the parent.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakKeyDictionary


class Socket(Protocol):
    """A socket as a transport of an event loop shows it."""

    def fileno(self) -> int:
        """Return the number of the socket's descriptor, or -1 after it was closed."""


_sockets: WeakKeyDictionary[object, Socket] = WeakKeyDictionary()
"""Sockets by the object that owns them."""


def give_up_at_fork(owner: object, transport: asyncio.Transport) -> None:
    """Have each process that is forked from now on replace its copy of the transport's socket by `/dev/null`.

    The number stays in use there, so that nothing else gets it and is closed together with the socket's object. The
    selector is not told, because both processes have the same one.

    The socket is asked for now, because a TLS transport that was closed twice raises `AttributeError` when it is asked.
    """
    socket = transport.get_extra_info("socket")
    if socket is not None:
        _sockets[owner] = socket


def _replace_sockets() -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for socket in list(_sockets.values()):
        if socket.fileno() >= 0:
            with suppress(OSError):  # closed by its number: there is no copy to give up
                os.dup2(null, socket.fileno(), inheritable=False)
    os.close(null)
    _sockets.clear()


os.register_at_fork(after_in_child=_replace_sockets)
