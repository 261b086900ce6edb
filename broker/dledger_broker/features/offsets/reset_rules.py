"""Rules for commits and pulls of groups that are reset, as `offsets` and `pulling` ask for them."""

from __future__ import annotations

from dledger_broker.features.offsets.recent_commits import Key
from dledger_broker.kernel.requests import Request
from dledger_remoting.headers import UpdateConsumerOffsetHeader
from dledger_remoting.hotpath import PullFields


class ResetRules:
    """Rules of a node without resets. The part that has resets inherits from this class."""

    def take_commit(self, request: Request, header: UpdateConsumerOffsetHeader) -> bool:
        """Take a commit that says `reset`. Return False if it is an ordinary commit."""
        _ = request, header
        return False

    def admits(self, request: Request, key: Key) -> bool:
        """Return whether a commit counts in a queue that was reset recently. Raises `SystemBusy`."""
        _ = request, key
        return True

    def offset_told(self, request: Request, key: Key) -> int | None:
        """Return the offset that a client is told instead of the committed offset, None for the committed offset."""
        _ = request, key
        return None

    def take_pull(self, request: Request, fields: PullFields) -> bool:
        """Answer a pull of a queue that is reset. Return False if it is an ordinary pull."""
        _ = request, fields
        return False
