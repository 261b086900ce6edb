"""Preparation of large batches in slices, one per turn of the event loop.

A batch of 4 MiB may have 40,000 messages. Messages of equal layout are prepared at once. Completing others one by one
takes a fifth of a second or more, in which a leader would be silent. One batch at a time is prepared here. Sends that
its client sends after it, without waiting for the answer, may be stored before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import Environment
from dledger_broker.features.sending.tails import SLICE_MESSAGES, PreparedBatch, RecordTails
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.records import MessageParts
from dledger_broker.kernel.requests import Request
from dledger_remoting.errors import MessageIllegal, ServiceNotAvailable, SystemBusy
from dledger_remoting.hotpath import SendV2Fields

MAX_WAITING_BYTES: Final = 64 << 20
"""Maximum size of all batches that wait here. A further batch is answered with code 2."""


class LargeBatch(NamedTuple):
    """Batch that was checked like any other send."""

    request: Request
    fields: SendV2Fields
    target: SendTarget
    queue_id: int


class LargeBatches:
    """Batches in the order of their arrival. `prepared` takes a complete batch; `fail` answers any other batch."""

    def __init__(
        self,
        env: Environment,
        tails: RecordTails,
        prepared: Callable[[LargeBatch, PreparedBatch], None],
        fail: Callable[[Request, Exception], None],
    ) -> None:
        self._env = env
        self._tails = tails
        self._prepared = prepared
        self._fail = fail
        self._waiting: deque[LargeBatch] = deque()
        self._waiting_bytes = 0
        self._split: list[tuple[int, bytes, bytes]] = []
        """Messages of the first batch."""
        self._messages: list[MessageParts] = []
        """Messages of the first batch that are complete."""
        self._with_own_keys = True

    def take(self, batch: LargeBatch) -> None:
        """Prepare a batch in later turns. Raises `SystemBusy` if too many wait."""
        size = len(batch.request.body)
        if self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise SystemBusy(
                f"large batches of {self._waiting_bytes} bytes wait here, the limit is {MAX_WAITING_BYTES}: nothing "
                "was stored, try again later"
            )
        self._waiting.append(batch)
        self._waiting_bytes += size
        if len(self._waiting) == 1:
            self._env.call_soon(self._begin)

    def close(self) -> None:
        """Answer the waiting batches, of which nothing is stored."""
        while self._waiting:
            self._fail(self._pop().request, ServiceNotAvailable("this node is stopping: nothing was stored"))

    def _begin(self) -> None:
        if self._waiting:
            batch = self._waiting[0]
            self._split, self._messages, self._with_own_keys = (
                self._tails.split(batch.request.body, batch.target),
                [],
                True,
            )
            self._env.call_soon(self._prepare_slice)

    def _prepare_slice(self) -> None:
        if not self._waiting:
            return
        begin = len(self._messages)
        try:
            done, with_own_keys = self._tails.one_by_one(
                self._split[begin : begin + SLICE_MESSAGES], self._waiting[0].target
            )
        except MessageIllegal as error:
            self._fail(self._pop().request, error)
        else:
            self._messages += done
            self._with_own_keys = self._with_own_keys and with_own_keys
            if len(self._messages) < len(self._split):
                self._env.call_soon(self._prepare_slice)
                return
            messages = self._messages
            self._prepared(self._pop(), (messages, self._with_own_keys))
        if self._waiting:
            self._env.call_soon(self._begin)

    def _pop(self) -> LargeBatch:
        batch = self._waiting.popleft()
        self._waiting_bytes -= len(batch.request.body)
        self._split, self._messages = [], []
        return batch
