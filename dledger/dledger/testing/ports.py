"""Free ports for servers whose tests have to know them before they start."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from typing import Final

FREE_PORTS: Final = range(12_000, 20_000)
"""Below the ports that systems give to outgoing connections and to whoever asks for any: one of those may be taken
before the server starts.  Clusters of processes have theirs above.
"""


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens now, in an order that no seed decides: who looks at the same time finds others."""
    ports: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS)):
            if len(ports) == count:
                break
            try:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                ports.append(port)
    return ports
