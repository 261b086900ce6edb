"""The replicated state as a stream of bytes.

A stream is a sequence of frames, each a length (4 bytes, big-endian) and a MessagePack map that names its kind: one
`start`, then any number of `topics`, `queues`, `groups`, `offsets` and `features`, `ordinal`, `pins`, `sends` and
`run` if there are any, then one `end` with the digest of the state.  How the stream is cut into chunks means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import starmap
from typing import Final, TypeAlias

import msgspec

from dledger.errors import CorruptionError
from dledger_broker.kernel.feature import Feature
from dledger_broker.kernel.state import BrokerState
from dledger_broker.state.groups import GROUPS
from dledger_broker.state.offsets import OFFSETS, OffsetTable
from dledger_broker.state.pins import PINS, Pin
from dledger_broker.state.recent_commits import LATE_COMMIT_S, Remembered
from dledger_broker.state.remembered import REMEMBERED, Summary
from dledger_broker.state.rows import Run
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

FORMAT: Final = 1
ROWS_PER_FRAME: Final = 500
"""Rows encoded in one slice: well below a millisecond of work."""


class _Start(msgspec.Struct, frozen=True, tag="start"):
    format: int
    topic_version: int
    trimmed_before: int = 0


class _TopicRow(msgspec.Struct, frozen=True, array_like=True):
    config: TopicConfig
    created_position: int


class _Topics(msgspec.Struct, frozen=True, tag="topics"):
    rows: list[_TopicRow]


class _Queues(msgspec.Struct, frozen=True, tag="queues"):
    """Queues as (topic, queue id, next offset, first kept offset); their topics come before them in the stream."""

    rows: list[tuple[str, int, int, int]]


class _Groups(msgspec.Struct, frozen=True, tag="groups"):
    rows: list[SubscriptionGroupConfig]


class _Offsets(msgspec.Struct, frozen=True, tag="offsets"):
    """Offsets as (group, topic, {queue id: offset}), and for each row who committed of late, as (queue id, offset,
    committer). Without those a version wrote the frame that did not remember.
    """

    rows: list[tuple[str, str, dict[int, int]]]
    recent: list[list[Remembered]] | None = None


class _Features(msgspec.Struct, frozen=True, tag="features"):
    rows: dict[str, tuple[int, ...]]


class _Ordinal(msgspec.Struct, frozen=True, tag="ordinal"):
    ordinal: int


class _Pins(msgspec.Struct, frozen=True, tag="pins"):
    rows: list[Pin]


class _Sends(msgspec.Struct, frozen=True, tag="sends"):
    summary: Summary


class _Run(msgspec.Struct, frozen=True, tag="run"):
    """Some rows of remembered sends, see `remembered`, in their order; the summary comes before them."""

    families: bytes
    members: bytes
    positions: bytes


class _End(msgspec.Struct, frozen=True, tag="end"):
    digest: int


_Frame: TypeAlias = (
    _Start | _Topics | _Queues | _Groups | _Offsets | _Features | _Ordinal | _Pins | _Sends | _Run | _End
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Frame).decode


def encode_state(state: BrokerState, now: float) -> Iterator[bytes]:
    """Capture the state as it is now, a time of the event loop's clock, and return what encodes it slice by slice.

    The capture itself costs about 0.1 µs for every queue and every (group, topic) pair, and 1 µs for every commit that
    is remembered.
    """
    queues = [
        (queue.topic, queue.queue_id, queue.next_offset, queue.first_offset)
        for queue in state.topic_table.queues()
        if queue.next_offset
    ]
    topics = [(topic.config, topic.created_position) for topic in state.topics.values()]
    groups = list(state.table(GROUPS).by_name.values())
    committed = state.table(OFFSETS)
    offsets, recent = committed.capture(), committed.recent.capture(now)
    start, end = _Start(FORMAT, state.topic_table.version, state.trims.before), _End(state.digest())
    features = dict(state.members.kinds)
    ordinal, pins = state.members.ordinal, list(state.table(PINS))
    remembered = state.table(REMEMBERED)
    remembers = remembered.window_ms > 0 or len(remembered) > 0
    summary, runs = remembered.capture()

    def frames() -> Iterator[_Frame]:
        yield start
        for begin in _slices(topics):
            yield _Topics([_TopicRow(*row) for row in topics[begin : begin + ROWS_PER_FRAME]])
        for begin in _slices(queues):
            yield _Queues(queues[begin : begin + ROWS_PER_FRAME])
        for begin in _slices(groups):
            yield _Groups(groups[begin : begin + ROWS_PER_FRAME])
        for begin in _slices(offsets):
            rows = offsets[begin : begin + ROWS_PER_FRAME]
            yield _Offsets(
                [(group, topic, dict(values)) for (group, topic), values in rows],
                [recent.get(pair, []) for pair, _ in rows],
            )
        yield _Features(features)
        if ordinal is not None:
            yield _Ordinal(ordinal)
        for begin in _slices(pins):
            yield _Pins(pins[begin : begin + ROWS_PER_FRAME])
        if remembers:
            yield _Sends(summary)
            yield from starmap(_Run, runs)
        yield end

    return map(_framed, frames())


def decode_state(chunks: Iterable[bytes], now: float, features: Sequence[Feature]) -> BrokerState:
    """The state in a stream; what it remembers of commits counts as new at `now`, a time of the event loop's clock.

    Raises `CorruptionError` if the stream is incomplete or its digest does not match."""
    state = BrokerState(features)
    groups, pins, remembered = state.table(GROUPS), state.table(PINS), state.table(REMEMBERED)
    ended: _End | None = None
    for frame in _frames(chunks):
        match frame:
            case _Start(format=found):
                if found != FORMAT:
                    raise CorruptionError(f"snapshot of the broker's state has format {found}, expected {FORMAT}")
                state.topic_table.restore_version(frame.topic_version)
                state.trims.raise_to(frame.trimmed_before)
            case _Topics():
                for row in frame.rows:
                    state.topic_table.put(row.config, row.created_position)
            case _Queues():
                for topic, queue_id, next_offset, first_offset in frame.rows:
                    _restore_queue(state, topic, queue_id, next_offset, first_offset)
            case _Groups():
                for config in frame.rows:
                    groups.put(config)
            case _Offsets():
                _restore_offsets(state.table(OFFSETS), frame, now)
            case _Features():
                for node_id, kinds in frame.rows.items():
                    state.members.put(node_id, kinds)
            case _Ordinal():
                state.members.set_ordinal(frame.ordinal)
            case _Pins():
                for pin in frame.rows:
                    pins.put(pin)
            case _Sends():
                remembered.restore(frame.summary)
            case _Run():
                remembered.restore_run(Run(frame.families, frame.members, frame.positions))
            case _End():
                ended = frame
    state.finish_restore()
    if ended is None:
        raise CorruptionError("snapshot of the broker's state ends before its last frame")
    if ended.digest != state.digest():
        raise CorruptionError(
            f"snapshot of the broker's state has digest {ended.digest:#x}, its content {state.digest():#x}"
        )
    return state


def _restore_queue(state: BrokerState, topic: str, queue_id: int, next_offset: int, first_offset: int) -> None:
    if topic not in state.topics:
        raise CorruptionError(f"snapshot of the broker's state has queue {topic}/{queue_id} but no topic {topic}")
    state.topic_table.restore_queue(topic, queue_id, next_offset, first_offset)


def _restore_offsets(table: OffsetTable, frame: _Offsets, now: float) -> None:
    for group, topic, offsets in frame.rows:
        for queue_id, offset in offsets.items():
            table.commit(group, topic, queue_id, offset)
    if frame.recent is None:
        table.recent.unknown_until = now + LATE_COMMIT_S
        return
    for (group, topic, _), remembered in zip(frame.rows, frame.recent, strict=False):
        table.recent.restore(group, topic, remembered, now)


def _slices(rows: Sized) -> range:
    return range(0, len(rows), ROWS_PER_FRAME)


def _framed(frame: _Frame) -> bytes:
    payload = _encode(frame)
    return len(payload).to_bytes(4, "big") + payload


def _frames(chunks: Iterable[bytes]) -> Iterator[_Frame]:
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        offset = 0
        while len(pending) - offset >= 4:
            end = offset + 4 + int.from_bytes(pending[offset : offset + 4], "big")
            if end > len(pending):
                break
            try:
                yield _decode(bytes(pending[offset + 4 : end]))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise CorruptionError(f"snapshot of the broker's state does not decode: {error}") from error
            offset = end
        del pending[:offset]
    if pending:
        raise CorruptionError(f"snapshot of the broker's state ends inside a frame, {len(pending)} bytes are left over")
