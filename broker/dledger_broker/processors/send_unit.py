"""The messages of one turn of the event loop as one unit of the log: encoded, and answered once they are applied.

What is the same for all messages of a unit, of a queue or of a client is done once for all of them: a unit lists one
run of records for each queue, and hands each client its answers in one call.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

from dledger_broker.processors.record_tails import MessageParts
from dledger_broker.processors.send_targets import SendTarget
from dledger_broker.server.request import Origin, Request
from dledger_broker.state.contexts import QueueRun
from dledger_broker.state.tables import QueueState
from dledger_broker.views.units import UNIT
from dledger_remoting.checksum import crc32
from dledger_remoting.errors import OutcomeUnknown
from dledger_remoting.hotpath import SendV2Fields, send_response_frame, stored_response_frame
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD, RECORD_HEAD_BYTES

_ONEWAY: Final = 2
_JSON: Final = 0

_pack_head: Final = RECORD_HEAD.pack
_pack_unit: Final = UNIT.pack

PendingSend: TypeAlias = tuple[Request, SendV2Fields, SendTarget, QueueState, Sequence[MessageParts], bytes, bool, int]
"""One request's messages, checked: request, its fields, where they go, the messages, the unique key of a single one,
whether it is a batch, the size of the records."""


def messages_bytes(messages: Sequence[MessageParts]) -> int:
    """The size of the records of these messages."""
    return sum([RECORD_HEAD_BYTES + len(body) + len(tail) for body, tail, _, _ in messages])


class SendUnit:
    """The context of a staged unit (`StagedContext`).

    `on_applied(count)` is told how many messages were stored once they are applied, `failed(request, error)` answers
    a request with an error.
    """

    __slots__ = ("_answers", "_failed", "_on_applied", "_oneway", "_pending", "deadline", "extent", "runs", "settled")

    def __init__(
        self,
        pending: list[PendingSend],
        deadline: float,
        on_applied: Callable[[int], None],
        failed: Callable[[Request, Exception], None],
    ) -> None:
        self._pending = pending
        self._on_applied = on_applied
        self._failed = failed
        self._answers: list[tuple[Origin, list[bytes]]] = []
        self._oneway: list[Origin] = []
        self.deadline = deadline
        self.runs: list[QueueRun] = []
        self.extent = (0, 0)
        self.settled = False

    def encode(self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes) -> list[bytes]:
        """The unit's records, of which the first byte will stand at `position`."""
        parts: list[bytes] = []
        add = parts.append
        units_of: dict[QueueState, tuple[int, list[bytes]]] = {}
        origin: Origin | None = None
        answers: list[bytes] = []
        begin = position
        for request, fields, target, queue, messages, unique_key, is_batch, _ in self._pending:
            if request.origin is not origin:
                origin = request.origin
                answers = []
                self._answers.append((origin, answers))
            magic, queue_id, born_timestamp, born_host = (
                target.magic,
                queue.queue_id,
                fields.born_timestamp,
                origin.born_host,
            )
            sys_flag, reconsume_times = fields.sys_flag & KEPT_SYS_FLAGS, fields.reconsume_times
            first_offset = queue_offset = queue.staged_offset
            known = units_of.get(queue)
            if known is None:
                known = units_of[queue] = (queue_offset, [])
            units = known[1]
            first_position = position
            for body, tail, flag, tag_code in messages:
                body_bytes = len(body)
                size = RECORD_HEAD_BYTES + body_bytes + len(tail)
                add(
                    _pack_head(
                        size,
                        magic,
                        crc32(body) & 0x7FFFFFFF,
                        queue_id,
                        flag,
                        queue_offset,
                        position,
                        sys_flag,
                        born_timestamp,
                        born_host,
                        now_ms,
                        store_host,
                        reconsume_times,
                        0,
                        body_bytes,
                    )
                )
                add(body)
                add(tail)
                units.append(_pack_unit(position, size, tag_code))
                queue_offset += 1
                position += size
            queue.staged_offset = queue_offset
            if request.flag & _ONEWAY:
                self._oneway.append(origin)
            elif is_batch or request.serialize_type != _JSON:
                ids = self._message_ids(id_prefix, first_position, messages)
                answers.append(
                    send_response_frame(
                        request.opaque, ids, queue_id, first_offset, unique_key, serialize_type=request.serialize_type
                    )
                )
            else:
                answers.append(
                    stored_response_frame(request.opaque, id_prefix, first_position, queue_id, first_offset, unique_key)
                )
        self.extent = (begin, position)
        self.runs = [(queue, first, b"".join(units)) for queue, (first, units) in units_of.items()]
        return parts

    @staticmethod
    def _message_ids(id_prefix: bytes, position: int, messages: Sequence[MessageParts]) -> bytes:
        """The offset message ids of records that lie back to back, each the prefix and the position in 16 digits."""
        sizes = [RECORD_HEAD_BYTES + len(body) + len(tail) for body, tail, _, _ in messages[:-1]]
        positions = array("Q", accumulate(sizes, initial=position))
        if sys.byteorder == "little":
            positions.byteswap()
        digits = positions.tobytes().hex(",", 8).upper().encode()
        return id_prefix + digits.replace(b",", b"," + id_prefix)

    def applied(self) -> None:
        """See `StagedContext`: answer every request of the unit."""
        if self.settled:
            return
        self.settled = True
        for origin, frames in self._answers:
            if frames:
                origin.answer_frames(frames)
        for origin in self._oneway:
            origin.settle()
        count = sum([len(units) for _, _, units in self.runs]) // UNIT.size
        self._pending = []
        self._answers = []
        self._on_applied(count)

    def dropped(self) -> None:
        """See `StagedContext`."""
        self.fail(OutcomeUnknown("leadership was lost before a majority had the message: it may be stored"))

    def fail(self, error: OutcomeUnknown) -> None:
        """Answer every request of the unit with an error, unless it was answered."""
        if not self.settled:
            self.settled = True
            for pending in self._pending:
                self._failed(pending[0], error)
