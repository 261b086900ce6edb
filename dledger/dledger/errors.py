"""Errors of the replicated log.

Every error that leaves a public call of this package is one of these.  Programming errors raise `InvariantError`
(see `dledger.invariants`) and are never caught.
"""

from __future__ import annotations


class LogError(Exception):
    """Base of all operating errors of the log."""


class ConfigError(LogError):
    """A configuration value is unknown, malformed or contradicts another one; the text names key, value and remedy."""


class NotLeaderError(LogError):
    """The call needs the leader and this replica is not it (or is handing over); nothing was proposed."""

    def __init__(self, leader_id: str | None, term: int, detail: str = "") -> None:
        self.leader_id = leader_id
        self.term = term
        where = f"the leader is {leader_id}" if leader_id else "no leader is known"
        super().__init__(f"not the leader in term {term}: {where}{'; ' + detail if detail else ''}")


class BusyError(LogError):
    """A bound was reached before anything was proposed; trying again later is safe."""


class OutcomeUnknownError(LogError):
    """The proposal was made and its fate is not known: it may or may not be in the log."""


class TooLargeError(LogError):
    """A unit does not fit into one entry or one segment."""


class LogFullError(LogError):
    """Space could not be reserved; nothing was proposed. Writing resumes by itself once space returns."""


class StorageError(LogError):
    """A write or an fsync of the log or of the hard state failed; the replica must stop serving."""


class CorruptionError(LogError):
    """Stored bytes do not verify; the text names the file, the position and what was found and expected."""


class MarkContradictedError(CorruptionError):
    """A log is not what its durable mark says: it ends below that, or is another log there."""


class UnreadableResetError(CorruptionError):
    """The intent to replace the log by a snapshot cannot be read: what is left of the log may be half of it."""


class IdentityError(LogError):
    """A data directory belongs to another cluster, group, node or format, or is in use by a live process."""


class UnreadableIdentityError(IdentityError):
    """No copy of a directory's identity can be read: whose directory it is, and which incarnation, is not known."""


class TrimmedError(LogError):
    """The asked-for position is below the first kept one."""


class ContradictionError(CorruptionError):
    """What this replica holds as committed is not what a leader has, or rotted here, and the group has it no more.

    Its log must be set aside and installed anew.
    """


class LostDirectoryError(CorruptionError):
    """What a replica promised cannot be read in its directory any more.

    It may come back empty, as another incarnation, while a leader that lists it answers.  `lost` names the file and
    what is lost with it, `remedy` says what an operator can do where there is no such leader.
    """

    def __init__(self, lost: str, remedy: str, why: str = "") -> None:
        self.lost = lost
        self.remedy = remedy
        super().__init__(". ".join(part for part in (lost, why, remedy) if part))


class StateDivergedError(LogError):
    """This replica's state machine computed another state than the majority's from the same log."""
