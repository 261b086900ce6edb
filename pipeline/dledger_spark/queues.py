"""Reading ranges of queues: one pull after another, as consumers do it, from a replica of the wanted role.

The next pull is in flight while the rows of the last one are made.

Records of pulls come without the checksums of their log entries, so each is checked here. The format is that of
`dledger_remoting.record`; the standard library only (and a faster CRC where one is installed).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

from dledger_remoting.filters.limits import MAX_EXPRESSION_CHARS

from .batches import BatchCollector, replica_reader
from .entries import Span
from .errors import CorruptDataError, DataLossError
from .nodes import NameServers, ReplicaReader
from .offsets import Queue
from .partitions import QueueRange
from .plans import identity_ext
from .throttle import Throttle
from .wanted import TopicRange
from .wire import Response

if TYPE_CHECKING:
    import pyarrow as pa
from struct import error

from .uncommon import HEAD_BYTES, HOST_FLAGS, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, has_crc

_FIELDS: Final = Struct(">iIIi4xq8xi44xi")
"""Size, magic, body crc, queue id, queue offset, sys flag, body length; hosts are IPv4."""
_INT: Final = Struct(">i")
_IPV6_MORE_BYTES: Final = 12


def check_records(data: bytes, queue_id: int, offset: int, following: int, *, is_filtered: bool) -> None:
    """Check that `data` is the records of a queue from `offset` to before `following`, and that each body has its CRC.

    With `is_filtered`, records may be missing between them. Raises `CorruptDataError`.
    """
    view, place = memoryview(data), 0
    unpack, next_offset = _FIELDS.unpack_from, offset
    while place < len(data):
        try:
            size, magic, body_crc, actual_queue, actual, sys_flag, body_bytes = unpack(data, place)
            start = place + HEAD_BYTES
            if sys_flag & HOST_FLAGS:
                start += _IPV6_MORE_BYTES * (sys_flag & HOST_FLAGS).bit_count()
                (body_bytes,) = _INT.unpack_from(data, start - 4)
        except error as cut_off:
            raise CorruptDataError(f"record at byte {place}: only {len(data) - place} bytes are left") from cut_off
        end = place + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES or not 0 <= body_bytes <= end - start:
            raise CorruptDataError(f"record at byte {place}: magic {magic:08x}, size {size}, body length {body_bytes}")
        is_next = next_offset <= actual < following if is_filtered else actual == next_offset
        if actual_queue != queue_id or not is_next or end > len(data):
            raise CorruptDataError(
                f"record at byte {place}: offset {actual} of queue {actual_queue} up to byte {end} of {len(data)}, "
                f"where one of queue {queue_id} from offset {next_offset} to before {following} should be"
            )
        if body_bytes and not has_crc(view[start : start + body_bytes], body_crc):
            raise CorruptDataError(f"record at byte {place}: the body at offset {actual} does not have its crc")
        next_offset, place = actual + 1, end
    if not data or (next_offset != following and not is_filtered):
        raise CorruptDataError(f"records from offset {offset} to before {next_offset}, not {following}")


LITE_PULL_MESSAGE: Final = 361
PULL_GROUP: Final = "CID_RMQ_SYS_SPARK"
"""A system group: it exists on every broker, and pulling with it creates nothing."""

_FOUND: Final = 0
_NOT_FOUND: Final = 19
_RETRY_IMMEDIATELY: Final = 20
_OFFSET_MOVED: Final = 21
_TOPIC_NOT_EXIST: Final = 17
_GONE: Final = frozenset({_NOT_FOUND, _OFFSET_MOVED, _TOPIC_NOT_EXIST})
"""Codes of answers for removed messages: the node has applied the plan's commit, so the messages were there before."""
_SUBSCRIPTION: Final = 4
_MAX_MESSAGES: Final = 1024
_MAX_BYTES: Final = 256 << 10
_GATHERED_BYTES: Final = 1 << 20
_OFFSETS: Final = Struct(">20xqq")
"""A record's queue offset and its physical offset."""


def read_range(part: QueueRange) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a range, in the order of the queue. Raises `SourceError` and its subclasses."""
    source = part.source
    wanted = TopicRange(part.queue.topic, {part.queue.queue_id: (part.start, part.end)}, part.first_position)
    collector = BatchCollector(source, [wanted], has_entries=False)
    with (
        NameServers(source.namesrv, known=True) as name_servers,
        replica_reader(name_servers, source, part.preference) as replicas,
    ):
        for bodies in _gather(_RangeReader(part, replicas)):
            ends = list(accumulate(map(len, bodies), initial=0))
            yield from collector.add(b"".join(bodies), [Span(start, end) for start, end in pairwise(ends)])
    yield from collector.rest()


def _gather(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield several bodies at once: building many rows together is cheaper per row."""
    gathered: list[bytes] = []
    for body in bodies:
        gathered.append(body)
        if sum(map(len, gathered)) >= _GATHERED_BYTES:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def locate(replicas: ReplicaReader, queue: Queue, offset: int, roles: str, commit: int) -> int | None:
    """Return the position of a message, as a replica has it that has applied `commit`; None if it is gone."""
    replicas.submit(LITE_PULL_MESSAGE, _pull_fields(queue, offset, 1, "*", roles, commit) | {"maxMsgBytes": "1"})
    response = replicas.result(lambda answer: None if answer.code in _GONE | {_FOUND} else f"code {answer.code}")
    if response.code != _FOUND or len(response.body) < _OFFSETS.size:
        return None
    _, position = _OFFSETS.unpack_from(response.body)
    return int(position)


def _pull_fields(queue: Queue, offset: int, messages: int, expression: str, roles: str, commit: int) -> dict[str, str]:
    """Return the fields of a pull that a replica answers from its applied state."""
    return {
        "consumerGroup": PULL_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(messages),
        "sysFlag": str(_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subVersion": "0",
        "subscription": expression,
        "expressionType": "TAG",
        "roles": roles,
        "minCommit": str(commit),
    }


def _tag_expression(tags: frozenset[str] | None) -> str:
    """Return the expression for a broker: these tags if it reads them unchanged, else everything."""
    if tags is None or not all(map(_is_expressible, tags)):
        return "*"
    expression = " || ".join(sorted(tags))
    return expression if len(expression) <= MAX_EXPRESSION_CHARS else "*"


def _is_expressible(tag: str) -> bool:
    """Return True if a broker reads this text between two bars as this tag. Brokers trim as Java does."""
    return bool(tag) and tag != "*" and "||" not in tag and tag[0] > " " and tag[-1] > " "


class _RangeReader:
    """Goes through a range, answer by answer; each body holds records."""

    def __init__(self, part: QueueRange, replicas: ReplicaReader) -> None:
        self._part = part
        self._replicas = replicas
        self._offset = part.start
        self._read_bytes = Throttle(part.source.max_bytes_per_second).request_bytes(_MAX_BYTES)
        self._tag_expression = _tag_expression(part.source.row_filter.tags)

    def __iter__(self) -> Iterator[bytes]:
        if self._part.source.row_filter.tags == frozenset():
            return
        self._submit()
        while self._offset < self._part.end:
            response = self._replicas.result(self._refusal)
            if response.code in _GONE:
                self._skip_removed(response)
            else:
                self._offset = int(response.ext["nextBeginOffset"])
            if self._offset < self._part.end:
                self._submit()
            if response.code != _FOUND:
                continue
            offset, position = _OFFSETS.unpack_from(response.body)
            if offset >= self._part.end:  # no message of the range is left that passes the filter
                break
            if not self._is_planned(position):
                return
            yield response.body
        if self._tag_expression != "*":
            self._check_last()

    def _submit(self) -> None:
        self._replicas.submit(LITE_PULL_MESSAGE, self._request())

    def _request(self) -> dict[str, str]:
        part, messages = self._part, min(self._part.end - self._offset, _MAX_MESSAGES)
        ext = _pull_fields(part.queue, self._offset, messages, self._tag_expression, part.source.roles, part.commit)
        ext |= identity_ext(part.source.group_identity)
        return ext | {"maxMsgBytes": str(self._read_bytes)}

    def _refusal(self, response: Response) -> str | None:
        """Return the reason why an answer is unusable; None if reading can continue with it."""
        if response.code in _GONE:
            return None
        if response.code not in (_FOUND, _RETRY_IMMEDIATELY):
            return f"code {response.code}: {response.remark}"
        next_offset = int(response.ext.get("nextBeginOffset", -1))
        if next_offset <= self._offset:
            return f"code {response.code} does not lead beyond offset {self._offset} of {self._part.queue}"
        if response.code != _FOUND:
            return None
        queue_id, is_filtered = self._part.queue.queue_id, self._tag_expression != "*"
        try:
            check_records(response.body, queue_id, self._offset, next_offset, is_filtered=is_filtered)
        except CorruptDataError as error:
            self._replicas.tell(LITE_PULL_MESSAGE, self._request() | {"verify": "true"})
            return f"records that do not verify: {error}"
        return None

    def _skip_removed(self, response: Response) -> None:
        """Continue at the first kept message, if losing the earlier messages is allowed."""
        if self._part.source.fail_on_data_loss:
            raise DataLossError(f"offset {self._offset} of {self._part.queue} is gone ({response.remark})")
        next_offset = int(response.ext.get("nextBeginOffset", self._part.end))
        self._offset = next_offset if self._offset < next_offset else self._part.end

    def _check_last(self) -> None:
        """Check by its position that the last message was planned: a filter hides the messages that it skips."""
        part = self._part
        position = locate(self._replicas, part.queue, part.end - 1, part.source.roles, part.commit)
        if position is not None:  # gone since its offset was passed, else
            self._is_planned(position)

    def _is_planned(self, position: int) -> bool:
        """Return True if the record at a position existed when the read was planned.

        Otherwise it belongs to a later topic of this name, whose offsets begin anew. Nothing is left to read then, if
        loss is allowed.
        """
        planned = self._part.first_position <= position < self._part.commit
        if not planned and self._part.source.fail_on_data_loss:
            raise DataLossError(f"the messages of {self._part.queue} that were to be read gave way to others")
        return planned
