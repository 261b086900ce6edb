"""Free ports for servers whose tests must know the ports before they start."""

from __future__ import annotations

import atexit
import errno
import os
import random
import socket
from itertools import cycle, islice
from typing import Final

FREE_PORTS: Final = range(12_000, 20_000)
"""Ports to use, below the range from which systems give out ports by themselves.

A port in that range may be taken before the server starts. Clusters of processes use ports above this range.
"""
SLICE_PORTS: Final = 200
"""Number of ports that belong to one process. It listens on the first of them while it lives."""


class _Slice:
    """Ports of this process alone. Each is used again only after all others have been given out.

    A port that is found free by chance is not safe. Others may take it before the server listens: the test's next node,
    another test process, or a node that restarts on its old port.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        first, self._claim = self._claim_slice()
        self._ports = cycle(range(first + 1, first + SLICE_PORTS))
        atexit.register(self._claim.close)

    @staticmethod
    def _claim_slice() -> tuple[int, socket.socket]:
        firsts = FREE_PORTS[::SLICE_PORTS]
        for first in random.SystemRandom().sample(firsts, len(firsts)):
            server = _listening(first)
            if server is not None:
                return first, server
        raise OSError(f"other processes hold all ports from {FREE_PORTS[0]} to {FREE_PORTS[-1]}: let some end")

    def take(self, count: int) -> list[int]:
        """Return so many ports on which nothing listens now. Raises OSError if there are fewer."""
        ports: list[int] = []
        for port in islice(self._ports, SLICE_PORTS - 1):
            server = _listening(port)
            if server is not None:
                server.close()
                ports.append(port)
                if len(ports) == count:
                    return ports
        raise OSError(f"{len(ports)} ports of this process are free, {count} are wanted: stop its servers")


_slice: _Slice | None = None


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens now and that no other process gets from here.

    Raises OSError if there are too few.
    """
    global _slice  # noqa: PLW0603 -- one for each process, a forked one too
    if _slice is None or _slice.pid != os.getpid():
        _slice = _Slice()
    return _slice.take(count)


def _listening(port: int) -> socket.socket | None:
    """Return a server on a port; None if somebody else listens there."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None
