"""Unit of the log with the messages of one turn of the event loop: encoded, and answered once they are applied.

Work that is the same for all messages of a unit, a queue or a client is done once. A unit lists one run of records for
each queue, and hands each client its answers in one call.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dledger.errors import LogFullError
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.contexts import QueueRun
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.records import MessageParts, encode_run
from dledger_broker.kernel.requests import Origin, Request
from dledger_broker.views.units import UNIT
from dledger_remoting.checksum import crc32
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import OutcomeUnknown
from dledger_remoting.hotpath import SendV2Fields, send_response_frame, stored_response_frame
from dledger_remoting.record import (
    KEPT_SYS_FLAGS,
    RECORD_HEAD,
    RECORD_HEAD_SHARED,
)

_ONEWAY: Final = 2
_JSON: Final = 0
_SHORT_FORM: Final = int(RequestCode.SEND_MESSAGE_V2)

_pack_head: Final = RECORD_HEAD.pack
_pack_shared: Final = RECORD_HEAD_SHARED.pack
_pack_unit: Final = UNIT.pack


class PendingSend(msgspec.Struct, eq=False):
    """Checked messages of one request that are not staged yet.

    - `messages`: the messages, completed, and `unique_key`, the key of a single message.
    - `sizes`: the size of each record of a batch, None for a single message. `size` is the size of all records.
    - `seed`: the seed of its identity, or the identity of a batch, or 0 if the send is not to be remembered.
    """

    request: Request
    fields: SendV2Fields
    target: SendTarget
    queue: QueueState
    queue_id: int
    messages: Sequence[MessageParts]
    unique_key: bytes
    sizes: list[int] | None
    size: int
    seed: int


class SendUnit:
    """Context of a staged unit (`StagedContext`).

    `on_applied(count, deadline)` is called with the number of messages once they are applied. `failed(request, error)`
    answers a request with an error. `remember(position)` writes the command that remembers sends of the unit, None if
    there is no such command.
    """

    __slots__ = (
        "_answers",
        "_failed",
        "_messages",
        "_on_applied",
        "_oneway",
        "_pending",
        "_remember",
        "deadline",
        "extent",
        "requests",
        "runs",
        "settled",
    )

    def __init__(
        self,
        pending: list[PendingSend],
        deadline: float,
        on_applied: Callable[[int, float], None],
        failed: Callable[[Request, Exception], None],
        remember: Callable[[int], None] | None = None,
    ) -> None:
        self._pending = pending
        self._remember = remember
        self._on_applied = on_applied
        self._failed = failed
        self._answers: list[tuple[Origin, list[bytes]]] = []
        self._oneway: list[Origin] = []
        self._messages = 0
        self.requests = len(pending)
        self.deadline = deadline
        self.runs: list[QueueRun] = []
        self.extent = (0, 0)
        self.settled = False

    def encode(self, position: int, now_ms: int, store_host: bytes, id_prefix: bytes) -> list[bytes]:
        """Return the unit's records, whose first byte will be at `position`."""
        parts: list[bytes] = []
        add = parts.append
        units_of: dict[QueueState, list[bytes]] = {}
        origin: Origin | None = None
        answers: list[bytes] = []
        begin = position
        remembers = self._remember is not None
        if self._remember is not None:
            self._remember(position)
        for send in self._pending:
            request, fields, queue, sizes = send.request, send.fields, send.queue, send.sizes
            remembered = remembers and send.seed != 0 if fields.idempotent else None
            if request.origin is not origin:
                origin = request.origin
                answers = []
                self._answers.append((origin, answers))
            first_offset = queue.staged_offset
            units = units_of.get(queue)
            if units is None:
                units = units_of[queue] = []
            first_position = position
            if sizes is not None:
                shared = _pack_shared(
                    fields.sys_flag & KEPT_SYS_FLAGS,
                    fields.born_timestamp,
                    origin.born_host,
                    now_ms,
                    store_host,
                    fields.reconsume_times,
                    0,
                )
                positions, position = encode_run(
                    parts, units, send.messages, sizes, position, queue, send.target.magic, shared
                )
                ids = _message_ids(id_prefix, positions)
            else:
                ((body, tail, flag, tag_code),) = send.messages
                size = send.size
                add(
                    _pack_head(
                        size,
                        send.target.magic,
                        crc32(body) & 0x7FFFFFFF,
                        send.queue_id,
                        flag,
                        first_offset,
                        position,
                        fields.sys_flag & KEPT_SYS_FLAGS,
                        fields.born_timestamp,
                        origin.born_host,
                        now_ms,
                        store_host,
                        fields.reconsume_times,
                        0,
                        len(body),
                    )
                )
                add(body)
                add(tail)
                units.append(_pack_unit(position, size, tag_code))
                position += size
                queue.staged_offset = first_offset + 1
                ids = b""
            if request.flag & _ONEWAY:
                self._oneway.append(origin)
            elif sizes is not None or request.code != _SHORT_FORM or request.serialize_type != _JSON:
                answers.append(
                    send_response_frame(
                        request.opaque,
                        ids or _message_ids(id_prefix, [first_position]),
                        send.queue_id,
                        first_offset,
                        send.unique_key,
                        serialize_type=request.serialize_type,
                        remembered=remembered,
                        with_trace_switch=request.is_from_go,
                    )
                )
            else:
                answers.append(
                    stored_response_frame(
                        request.opaque,
                        id_prefix,
                        first_position,
                        send.queue_id,
                        first_offset,
                        send.unique_key,
                        remembered,
                    )
                )
        self.extent = (begin, position)
        for queue, units in units_of.items():
            self.runs.append((queue, queue.staged_offset, b"".join(units)))
            self._messages += len(units)
        return parts

    def applied(self) -> None:
        """Answer every request of the unit."""
        if self.settled:
            return
        self.settled = True
        for origin, frames in self._answers:
            if frames:
                origin.answer_frames(frames)
        for origin in self._oneway:
            origin.settle()
        self._pending = []
        self._answers = []
        self._on_applied(self._messages, self.deadline)

    def dropped(self, full: LogFullError | None) -> None:
        """Answer every request of the unit with an error, because the unit was lost."""
        unknown = "leadership was lost before a majority had the message: it may be stored"
        self.fail(full or OutcomeUnknown(unknown))

    def fail(self, error: Exception) -> None:
        """Answer every request of the unit with an error, unless it was answered."""
        if not self.settled:
            self.settled = True
            for send in self._pending:
                self._failed(send.request, error)


def _message_ids(id_prefix: bytes, positions: Sequence[int]) -> bytes:
    """Return the offset message ids of records, each of them the prefix and the position in 16 digits."""
    numbers = array("Q", positions)
    if sys.byteorder == "little":
        numbers.byteswap()
    digits = numbers.tobytes().hex(",", 8).upper().encode()
    return id_prefix + digits.replace(b",", b"," + id_prefix)
