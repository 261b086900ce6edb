"""Limits on the files and connections that this process may have open at a time.

If a listener accepts more connections than that, the server can neither open its own files nor accept its peers.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

OWN_FILES: Final = 2048
"""Number of files that a server may need besides its clients' connections.

These are files of log and views, peers, other ports, and connections that must be accepted before they can be refused.
"""


def room_for_connections(wanted: int) -> int:
    """Raise the limit of open files as far as needed and allowed, and return the number of connections for which there
    is room.

    The number is at most `wanted`. If the limit is below twice `OWN_FILES`, half of it is for connections.
    """
    needed = wanted + OWN_FILES
    soft, hard = (needed if limit == resource.RLIM_INFINITY else limit for limit in _read_limits())
    if soft < needed and soft < hard:
        raised = min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, _read_limits()[1]))
            soft = raised
    return min(wanted, max(soft - OWN_FILES, soft // 2))


def too_few_files(wanted: int, room: int) -> str:
    """Return a text for the operator who configured `wanted` connections where there is `room` for fewer."""
    return (
        f"max_connections = {wanted} are more than the {_read_limits()[0]} files that this process may open leave room "
        f"for: {room} are taken; raise the limit (ulimit -n, LimitNOFILE=), or set max_connections to at most {room}"
    )


def _read_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
