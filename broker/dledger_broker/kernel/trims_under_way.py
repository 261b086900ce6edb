"""Overlay of trims: what this leader is about to trim, and nobody may count on any more."""

from __future__ import annotations

from dledger.errors import LogError
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.trims import TrimQueues


class TrimsUnderWay:
    """What a leader searches for, and what it has proposed and not yet applied.

    A search counts as long as its run of a job goes on, a proposal until it is applied or lost.
    """

    def __init__(self) -> None:
        self._search: tuple[JobHandle, int] | None = None
        self._proposed: list[int] = []

    @property
    def position(self) -> int:
        """The position below which the log is about to be trimmed; 0 if no trim is under way."""
        if self._search is not None and not self._search[0].is_stopped:
            return max(self._search[1], *self._proposed, 0)
        return max(self._proposed, default=0)

    def search(self, handle: JobHandle, position: int) -> None:
        """What queues keep above a position is being searched for."""
        self._search = handle, position

    def end_search(self) -> None:
        """It is found, or cannot be."""
        self._search = None

    def propose(self, handle: JobHandle, command: TrimQueues, done: Done) -> None:
        """Have queues told, see `JobHandle.stage_command`; it makes room on a full disk."""
        position = command.before_position

        def finished(error: LogError | None) -> None:
            self._proposed.remove(position)
            done(error)

        self._proposed.append(position)
        try:
            handle.stage_command(command, finished, privileged=True)
        except BaseException:
            self._proposed.remove(position)
            raise
