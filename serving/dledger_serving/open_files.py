"""Limits on the files and connections that this process may have open at a time.

A listener that takes more connections than that leaves a server unable to open its own files and to accept its peers.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

OWN_FILES: Final = 2048
"""What a server may need besides its clients' connections: files of log and views, peers, other ports, and a backlog of
connections that have to be accepted before they can be refused.
"""


def room_for_connections(wanted: int) -> int:
    """How many of `wanted` connections there is room for, once the limit is raised as far as they need and it goes.

    Where the limit is below twice `OWN_FILES`, half of it is for connections.
    """
    needed = wanted + OWN_FILES
    soft, hard = (needed if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    if soft < needed and soft < hard:
        raised = min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, _limits()[1]))
            soft = raised
    return min(wanted, max(soft - OWN_FILES, soft // 2))


def too_few_files(wanted: int, room: int) -> str:
    """What to tell whoever configured `wanted` connections where there is `room` for fewer."""
    return (
        f"max_connections = {wanted} are more than the {_limits()[0]} files that this process may open leave room for: "
        f"{room} are taken; raise the limit (ulimit -n, LimitNOFILE=), or set max_connections to at most {room}"
    )


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
