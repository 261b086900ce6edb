"""Memory budget of the requests that wait for messages, over all connections of a node."""

from __future__ import annotations

from typing import Final

from dledger_broker.kernel.requests import Request

MAX_BYTES: Final = 128 << 20
"""Maximum size in bytes of all waiting requests. About 80,000 pulls of usual clients fit."""
REQUEST_BYTES: Final = 768
"""Size in bytes of a waiting request, beside its header and body and the decoded header."""
DECODED: Final = 2
"""Size of a header with its decoded form, in multiples of the header's size."""


class HeldMemory:
    """The requests that wait on this node. Each wait begins and ends through this class."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def has_room(self, request: Request) -> bool:
        """Return whether another request may wait."""
        return self.held_bytes + request_bytes(request) <= MAX_BYTES

    def begin_wait(self, request: Request) -> None:
        """Count a request that waits from now on."""
        self.held_bytes += request_bytes(request)
        request.origin.begin_wait()

    def end_wait(self, request: Request) -> None:
        """Count a request that no longer waits."""
        self.held_bytes -= request_bytes(request)
        request.origin.end_wait()


def request_bytes(request: Request) -> int:
    """Return about how much memory a waiting request takes, in bytes."""
    return REQUEST_BYTES + DECODED * len(request.header) + len(request.body)
