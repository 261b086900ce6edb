"""Reading ranges of queues: one pull after the other, as consumers do it, from a replica of the wanted role.

The next pull is on its way while the rows of the last one are made.
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
from .throttle import Throttle
from .wanted import TopicRange
from .wire import Response

if TYPE_CHECKING:
    import pyarrow as pa

LITE_PULL_MESSAGE: Final = 361
PULL_GROUP: Final = "CID_RMQ_SYS_SPARK"
"""A system group: it exists on every broker, and pulling with it creates nothing."""

_FOUND: Final = 0
_NOT_FOUND: Final = 19
_RETRY_IMMEDIATELY: Final = 20
_OFFSET_MOVED: Final = 21
_TOPIC_NOT_EXIST: Final = 17
_GONE: Final = frozenset({_NOT_FOUND, _OFFSET_MOVED, _TOPIC_NOT_EXIST})
"""The node has applied what the plan knew of: what is not there is not there any more."""
_SUBSCRIPTION: Final = 4
_MAX_MESSAGES: Final = 1024
_MAX_BYTES: Final = 256 << 10
_GATHERED_BYTES: Final = 1 << 20
_PLACE: Final = Struct(">20xqq")
"""A record's queue offset and its physical offset."""


def read_range(part: QueueRange) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a range, in the order of the queue. Raises `SourceError` and its subclasses."""
    source = part.source
    wanted = TopicRange(part.queue.topic, {part.queue.queue_id: (part.start, part.end)}, part.first_position)
    collector = BatchCollector(source, [wanted], has_entries=False)
    with (
        NameServers(source.namesrv, known=True) as name_servers,
        replica_reader(name_servers, source, part.preference) as replicas,
    ):
        for bodies in _gathered(_RangeReader(part, replicas)):
            ends = list(accumulate(map(len, bodies), initial=0))
            yield from collector.add(b"".join(bodies), [Span(start, end) for start, end in pairwise(ends)])
    yield from collector.rest()


def _gathered(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Several bodies at once, because rows are the cheaper the more of them are made together."""
    gathered: list[bytes] = []
    for body in bodies:
        gathered.append(body)
        if sum(map(len, gathered)) >= _GATHERED_BYTES:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def locate(replicas: ReplicaReader, queue: Queue, offset: int, roles: str, commit: int) -> int | None:
    """The position of a message that a queue had when the log was committed to `commit`; None if it is gone."""
    replicas.submit(LITE_PULL_MESSAGE, _pull(queue, offset, 1, "*", roles, commit) | {"maxMsgBytes": "1"})
    response = replicas.result(lambda answer: None if answer.code in _GONE | {_FOUND} else f"code {answer.code}")
    if response.code != _FOUND or len(response.body) < _PLACE.size:
        return None
    _, position = _PLACE.unpack_from(response.body)
    return int(position)


def _pull(queue: Queue, offset: int, messages: int, expression: str, roles: str, commit: int) -> dict[str, str]:
    """The fields of a pull that a replica answers from what it has applied."""
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


def _expression(tags: frozenset[str] | None) -> str:
    """What a broker is asked for: these tags if it takes them for what they are, else everything."""
    if tags is None or not all(map(_can_be_asked_for, tags)):
        return "*"
    expression = " || ".join(sorted(tags))
    return expression if len(expression) <= MAX_EXPRESSION_CHARS else "*"


def _can_be_asked_for(tag: str) -> bool:
    """Whether a broker takes this text between two bars for this tag; it trims as Java does."""
    return bool(tag) and tag != "*" and "||" not in tag and tag[0] > " " and tag[-1] > " "


class _RangeReader:
    """Goes through a range, answer by answer; each body holds records."""

    def __init__(self, part: QueueRange, replicas: ReplicaReader) -> None:
        self._part = part
        self._replicas = replicas
        self._offset = part.start
        self._read_bytes = Throttle(part.source.max_bytes_per_second).request_bytes(_MAX_BYTES)
        self._expression = _expression(part.source.row_filter.tags)

    def __iter__(self) -> Iterator[bytes]:
        if self._part.source.row_filter.tags == frozenset():
            return
        self._submit()
        while self._offset < self._part.end:
            response = self._replicas.result(self._refusal)
            if response.code in _GONE:
                self._skip_to_kept(response)
            else:
                self._offset = int(response.ext["nextBeginOffset"])
            if self._offset < self._part.end:
                self._submit()
            if response.code != _FOUND:
                continue
            if len(response.body) < _PLACE.size:
                raise CorruptDataError(f"an answer of {len(response.body)} bytes holds no record")
            offset, position = _PLACE.unpack_from(response.body)
            if offset >= self._part.end:  # no message of the range is left that passes the filter
                break
            if not self._is_planned(position):
                return
            yield response.body
        if self._expression != "*":
            self._check_last()

    def _submit(self) -> None:
        part, messages = self._part, min(self._part.end - self._offset, _MAX_MESSAGES)
        ext = _pull(part.queue, self._offset, messages, self._expression, part.source.roles, part.commit)
        self._replicas.submit(LITE_PULL_MESSAGE, ext | {"maxMsgBytes": str(self._read_bytes)})

    def _refusal(self, response: Response) -> str | None:
        """Why an answer is of no use; None if the reading can go on with it."""
        if response.code in _GONE:
            return None
        if response.code not in (_FOUND, _RETRY_IMMEDIATELY):
            return f"code {response.code}: {response.remark}"
        following = int(response.ext.get("nextBeginOffset", -1))
        if following <= self._offset:
            return f"code {response.code} does not lead beyond offset {self._offset} of {self._part.queue}"
        return None

    def _skip_to_kept(self, response: Response) -> None:
        """Go on at the first kept message, if losing the ones before is allowed."""
        if self._part.source.fail_on_data_loss:
            raise DataLossError(f"offset {self._offset} of {self._part.queue} is gone ({response.remark})")
        following = int(response.ext.get("nextBeginOffset", self._part.end))
        self._offset = following if self._offset < following else self._part.end

    def _check_last(self) -> None:
        """A filter does not show what it skips: where the range's last message lies tells whether it was planned."""
        part = self._part
        position = locate(self._replicas, part.queue, part.end - 1, part.source.roles, part.commit)
        if position is not None:  # gone since its offset was passed, else
            self._is_planned(position)

    def _is_planned(self, position: int) -> bool:
        """Whether the record there was there when the read was planned, and is not one of a later topic of this name,
        which begins its offsets anew. Then nothing is left to read, if losing it is allowed.
        """
        planned = self._part.first_position <= position < self._part.commit
        if not planned and self._part.source.fail_on_data_loss:
            raise DataLossError(f"the messages of {self._part.queue} that were to be read gave way to others")
        return planned
