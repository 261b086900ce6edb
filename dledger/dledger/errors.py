"""Errors of the replicated log.

If something fails, the public calls of a node raise only `LogError`s. Programming errors raise `InvariantError` (see
`dledger_base.invariants`), after which the process must not continue.
"""

from __future__ import annotations

from dledger_base.errors import ConfigError, LogError

__all__ = [
    "BusyError",
    "ConfigError",
    "ContradictionError",
    "CorruptionError",
    "IdentityError",
    "LogError",
    "LogFullError",
    "LostDirectoryError",
    "MarkContradictedError",
    "NotLeaderError",
    "OutcomeUnknownError",
    "StateDivergedError",
    "StorageError",
    "TooLargeError",
    "TrimmedError",
    "UnreadableIdentityError",
    "UnreadableResetError",
]


class NotLeaderError(LogError):
    """The call needs the leader, and this replica does not lead or is handing over. Nothing was proposed."""

    def __init__(self, leader_id: str | None, term: int, detail: str = "") -> None:
        self.leader_id = leader_id
        self.term = term
        where = f"the leader is {leader_id}" if leader_id else "no leader is known"
        super().__init__(f"not the leader in term {term}: {where}{'; ' + detail if detail else ''}")


class BusyError(LogError):
    """A bound was reached before anything was proposed. Trying again later is safe."""


class OutcomeUnknownError(LogError):
    """The proposal was made and its outcome is not known: it may or may not be in the log."""


class TooLargeError(LogError):
    """A unit does not fit into one entry or one segment."""


class LogFullError(LogError):
    """Space could not be reserved. Nothing was proposed. Writing resumes by itself once there is space again."""


class StorageError(LogError):
    """A write, a sync or another operation on the files of a replica failed. The replica must stop serving."""


class CorruptionError(LogError):
    """Stored bytes do not verify. The text names the file, the position, and what was found and expected."""


class MarkContradictedError(CorruptionError):
    """A log contradicts its durable mark: it ends below the mark, or is another log there."""


class UnreadableResetError(CorruptionError):
    """The intent to replace the log by a snapshot cannot be read. The rest of the log may be incomplete."""


class IdentityError(LogError):
    """A data directory holds no node, belongs to another cluster, group, node or format, or a live process uses it."""


class UnreadableIdentityError(IdentityError):
    """No copy of a directory's identity can be read: its owner and incarnation are not known."""


class TrimmedError(LogError):
    """The requested position is below the first kept position."""


class ContradictionError(CorruptionError):
    """Committed data of this replica contradicts a leader's, or has rotted here while the group has trimmed it.

    The log must be set aside and installed anew.
    """


class LostDirectoryError(CorruptionError):
    """Promises of a replica cannot be read in its directory any more.

    The node may come back empty, as another incarnation, once a leader that lists it answers. `lost` names the file and
    what is lost with it. `remedy` says what an operator can do if no leader that lists the node answers.
    """

    def __init__(self, lost: str, remedy: str, why: str = "") -> None:
        self.lost = lost
        self.remedy = remedy
        super().__init__(". ".join(part for part in (lost, why, remedy) if part))


class StateDivergedError(LogError):
    """This replica's state machine computed another state than the majority's from the same log."""
