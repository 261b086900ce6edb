"""Ordinary sends of a turn that the native part takes, and the unit of the log that it makes of them.

The result is the same, byte for byte, as that of `send.SendRequests` and `unit.SendUnit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dledger.errors import LogError, LogFullError
from dledger_base.invariants import known
from dledger_base.native_part import NativePart, SendRun
from dledger_broker.features.sending.on_their_way import MAX_UNIT_BYTES
from dledger_broker.features.sending.staging import SendStaging
from dledger_broker.features.sending.targets import SendTargets
from dledger_broker.kernel.contexts import QueueRun
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read, Request, Requests
from dledger_remoting.errors import OutcomeUnknown

_JSON: Final = 0
_SEND_PREFIXES: Final = (b'{"code":310,', b'{"code":320,')


class Twin(Protocol):
    """The same in Python, `plain_sends.PlainSends`."""

    def take_back(self, requests: Sequence[Request]) -> None:
        """Handle sends that arrived before all sends that wait for their unit."""

    def note_applied(self, messages: int, deadline: float) -> None:
        """Count a unit that was applied and answered."""


class NativeSends:
    """Sends of this turn in the order of their arrival. None is staged before `flush`."""

    def __init__(
        self,
        native: NativePart,
        live: LiveConfig,
        counters: BrokerCounters,
        targets: SendTargets,
        staging: SendStaging,
        requests: Requests,
        twin: Twin,
    ) -> None:
        self._native = native
        self._live = live
        self._counters = counters
        self._targets = targets
        self._staging = staging
        self._fail = requests.fail
        self._run: SendRun | None = None
        self._twin = twin

    @property
    def count(self) -> int:
        """Number of sends that wait here."""
        return 0 if self._run is None else self._run.count

    @property
    def size(self) -> int:
        """Size of their records in bytes."""
        return 0 if self._run is None else self._run.size

    def take(self, reads: Sequence[Read], number: int, place: int, received: float) -> tuple[int, int, bool]:
        """Take sends as `SendRequests.take_run` does, up to the first send that the native part does not take.

        The last value is True if that send does not fit the unit's size. Then it has to be offered again after `flush`.
        """
        _, data, frames = reads[number]
        if place < len(frames) and not data.startswith(_SEND_PREFIXES, frames[place][0]):
            return number, place, False  # A client that only pulls must not pay for a full check.
        if self._run is None:
            self._run = self._native.SendRun()
        run, before = self._run, self._run.count
        known, max_body_bytes = self._targets.known, self._live.config.max_message_bytes
        taken = run.take(reads, number, place, received, known, max_body_bytes, MAX_UNIT_BYTES)
        self._counters.requests += run.count - before
        return taken

    def flush(self) -> None:
        """Stage the sends that were taken, or hand them to the twin.

        The twin gets them if a topic was deleted or has a quota, or if the native part fails. It handles them one by
        one, as if they arrived now.
        """
        run, self._run = self._run, None
        if run is not None and run.count and not self._is_staged(run):
            self._twin.take_back(_requests_of(run))

    def _is_staged(self, run: SendRun) -> bool:
        """Stage the sends, or answer them if the log refuses them. Return False if the twin has to handle them."""
        staging = self._staging
        try:
            targets = run.targets()
        except self._native.Panicked:
            return False
        if any(staging.is_deleted(target) for target, _, _ in targets) or staging.limits(
            target for target, _, _ in targets
        ):
            return False
        unit = NativeSendUnit(run, staging.in_flight.deadline(), self._twin.note_applied, self._fail)
        try:
            staging.stage(unit, run.size)
        except LogError as error:
            unit.fail(error)
            return True
        except self._native.Panicked:  # Nothing is staged, and no offset is used.
            return False
        for target, count, size in targets:
            self._counters.sizes.count(target.topic, size, count)
        return True


def _requests_of(run: SendRun) -> list[Request]:
    return [
        Request(origin, code, opaque, flag, _JSON, header, body, received)
        for origin, code, opaque, flag, header, body, received in run.requests()
    ]


class NativeSendUnit:
    """Context of a staged unit, like `unit.SendUnit`."""

    __slots__ = ("_failed", "_messages", "_on_applied", "_run", "deadline", "extent", "requests", "runs", "settled")

    def __init__(
        self,
        run: SendRun,
        deadline: float,
        on_applied: Callable[[int, float], None],
        failed: Callable[[Request, Exception], None],
    ) -> None:
        self._run: SendRun | None = run
        self._on_applied = on_applied
        self._failed = failed
        self._messages = run.messages
        self.requests = run.count
        self.deadline = deadline
        self.runs: Sequence[QueueRun] = ()
        self.extent = (0, 0)
        self.settled = False

    def encode(self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes) -> list[bytes]:
        """Return the unit's records, whose first byte will be at `position`."""
        run = known(self._run, "a unit is encoded before it is answered")
        records, self.runs = run.encode(position, now_ms, store_host, id_prefix)
        # Change the queues only now, when nothing can fail any more: after a failure the sends are returned.
        for queue, next_offset, _ in self.runs:
            queue.staged_offset = next_offset
        self.extent = (position, position + len(records))
        return [records]

    def applied(self) -> None:
        """Answer every request of the unit."""
        if self.settled:
            return
        run, self._run = known(self._run, "a unit has its sends until it is answered"), None
        try:
            answers, oneway = run.answers()
        # The native part is at fault. Answer the waiting clients at least that their messages are stored.
        except RuntimeError:
            self._run = run
            self.fail(OutcomeUnknown("the messages are stored, and their places cannot be told: a fault of this node"))
            answers, oneway = [], []
        self.settled = True
        for origin, frames in answers:
            origin.answer_frames(frames)
        for origin in oneway:
            origin.settle()
        self._on_applied(self._messages, self.deadline)

    def dropped(self, full: LogFullError | None) -> None:
        """Answer every request of the unit with an error, because the unit was lost."""
        unknown = "leadership was lost before a majority had the message: it may be stored"
        self.fail(full or OutcomeUnknown(unknown))

    def fail(self, error: Exception) -> None:
        """Answer every request of the unit with an error, unless it was answered."""
        if not self.settled:
            run, self._run = known(self._run, "a unit has its sends until it is answered"), None
            self.settled = True
            for request in _requests_of(run):
                self._failed(request, error)
