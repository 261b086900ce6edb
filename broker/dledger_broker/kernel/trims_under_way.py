"""Overlay of trims: the part of the log that this leader is about to trim. Other code must not count on it."""

from __future__ import annotations

from dledger.errors import LogError
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.trims import TrimQueues


class TrimsUnderWay:
    """Trims that a leader prepares, or has proposed and not yet applied.

    A search counts until its run of a job ends, a proposal until it is applied or lost.
    """

    def __init__(self) -> None:
        self._search: tuple[JobHandle, int] | None = None
        self._proposed: list[int] = []

    @property
    def position(self) -> int:
        """The position below which the log is about to be trimmed, 0 if no trim is under way."""
        if self._search is not None and not self._search[0].is_stopped:
            return max(self._search[1], *self._proposed, 0)
        return max(self._proposed, default=0)

    def search(self, handle: JobHandle, position: int) -> None:
        """Note that a search for the first offsets that queues keep above a position has begun."""
        self._search = handle, position

    def end_search(self) -> None:
        """Note that the search has ended, with or without success."""
        self._search = None

    def propose(self, handle: JobHandle, command: TrimQueues, done: Done) -> None:
        """Propose the new first offsets of queues, see `JobHandle.stage_command`. The trim makes room on a full
        disk.
        """
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
