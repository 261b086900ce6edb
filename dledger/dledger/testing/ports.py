"""Free ports for servers whose tests have to know them before they start."""

from __future__ import annotations

import atexit
import errno
import os
import random
import socket
from itertools import cycle, islice
from typing import Final

FREE_PORTS: Final = range(12_000, 20_000)
"""Below the ports that systems give to outgoing connections and to whoever asks for any: one of those may be taken
before the server starts.  Clusters of processes have theirs above.
"""
SLICE_PORTS: Final = 200
"""So many belong to one process, which listens on the first of them for as long as it lives."""


class _Slice:
    """Ports of this process alone, each of which comes again when all others have been given out.

    A port that is found free by chance is not safe: the test's next node, another process of tests, or a node that
    starts again on its old port may take it before the server listens.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        first, self._claim = self._claimed()
        self._ports = cycle(range(first + 1, first + SLICE_PORTS))
        atexit.register(self._claim.close)

    @staticmethod
    def _claimed() -> tuple[int, socket.socket]:
        firsts = FREE_PORTS[::SLICE_PORTS]
        for first in random.SystemRandom().sample(firsts, len(firsts)):
            server = _listening(first)
            if server is not None:
                return first, server
        raise OSError(f"other processes hold all ports from {FREE_PORTS[0]} to {FREE_PORTS[-1]}: let some end")

    def take(self, count: int) -> list[int]:
        """So many ports on which nothing listens now. Raises OSError if there are fewer."""
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
    """Ports on which nothing listens now, and which no other process that asks here is given. Raises OSError if there
    are too few.
    """
    global _slice  # noqa: PLW0603 -- one for each process, a forked one too
    if _slice is None or _slice.pid != os.getpid():
        _slice = _Slice()
    return _slice.take(count)


def _listening(port: int) -> socket.socket | None:
    """A server on a port; None if somebody else listens there."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None
