"""Consumer groups as administrators see them: their members, their progress, and the readers of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from dledger_remoting.bodies import decode_fastjson_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.consumers import ConsumerConnection, QueueReaders, decode_consume_stats
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import ConsumerGroupHeader, ConsumerRunningInfoHeader, encode_ext
from dledger_remoting.heartbeat import MessageModel
from dledger_remoting.statistics import ConsumeTimeSpans

from ..cluster.core import ClientCore
from ..errors import ClientError, RefusedError, refusal
from ..messages import MessageQueue
from .cluster_calls import ClusterCalls, decode

BodyT = TypeVar("BodyT")


class QueueStatus(msgspec.Struct, frozen=True):
    """One queue as a group sees it: kept offsets are from `first` to `end` - 1; `committed` is None before a commit."""

    queue: MessageQueue
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        """Number of messages that the group still has to process."""
        return max(self.end - max(self.first if self.committed is None else self.committed, self.first), 0)


class GroupMember(msgspec.Struct, frozen=True):
    """A client in a consumer group, with its subscriptions: expressions by topic."""

    client_id: str
    address: str
    language: str
    subscriptions: dict[str, str]
    broadcast: bool

    def __str__(self) -> str:
        return f"{self.client_id} ({self.address})"


class QueueReader(msgspec.Struct, frozen=True):
    """The client that last asked for messages of a queue, `idle_seconds` ago.

    A reader that is no member has no `client_ids`.
    """

    queue: MessageQueue
    client_ids: tuple[str, ...]
    address: str
    idle_seconds: float


class RunningConsumer(msgspec.Struct, frozen=True):
    """A member's own report: its properties by Java's names, and the stacks of its threads and tasks if asked for."""

    properties: dict[str, str] = {}
    stacks: str | None = msgspec.field(name="jstack", default=None)


def members_of(answers: Mapping[str, RemotingCommand]) -> list[GroupMember]:
    """Return the members that one of the leaders named in its answer to 203, by client id."""
    members: dict[str, GroupMember] = {}
    for answer in answers.values():
        if answer.code != ResponseCode.SUCCESS:
            continue
        body = _decode_body(ConsumerConnection, answer)
        broadcast = body.message_model is MessageModel.BROADCASTING
        for connection in body.connection_set:
            member = GroupMember(
                connection.client_id, connection.client_addr, connection.language, connection.subscriptions, broadcast
            )
            members.setdefault(connection.client_id, member)
    return [members[client_id] for client_id in sorted(members)]


def progress_of(answers: Mapping[str, RemotingCommand]) -> list[QueueStatus]:
    """Return the leaders' reports about queues in their answers to 208, sorted by queue."""
    statuses: list[QueueStatus] = []
    for name, answer in answers.items():
        try:
            table = decode_consume_stats(answer.body)
        except RemotingError as error:
            raise refusal(error) from error
        for queue, progress in table.items():
            committed = progress.consumer_offset if progress.committed else None
            place = MessageQueue(queue.topic, name, queue.queue_id)
            statuses.append(QueueStatus(place, progress.min_offset, progress.broker_offset, committed))
    return sorted(statuses, key=lambda status: status.queue)


def delays_of(answers: Mapping[str, RemotingCommand]) -> dict[MessageQueue, float]:
    """Return the seconds since the next message of each queue was stored, of the leaders' answers to 303."""
    return {
        MessageQueue(span.message_queue.topic, name, span.message_queue.queue_id): max(0, span.delay_time) / 1000
        for name, answer in answers.items()
        for span in _decode_body(ConsumeTimeSpans, answer).consume_time_span_set
    }


async def ask_running(calls: ClusterCalls, group: str, client_id: str, *, stacks: bool) -> RunningConsumer:
    """Return what a member says of itself. Any leader knows all members.

    Raises `RefusedError` of the last leader that was asked.
    """
    header = encode_ext(ConsumerRunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=stacks))
    last: RefusedError | None = None
    for name in await calls.group_names(None):
        try:
            answers = await calls.ask_leaders([name], RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        except RefusedError as error:
            last = error
        else:
            return decode(RunningConsumer, answers[name].body)
    assert last is not None, "there is a broker group"
    raise last


async def ask_readers(
    core: ClientCore, names: Iterable[str], group: str, deadline: float
) -> dict[MessageQueue, QueueReader]:
    """Return the newest reader of each queue that a node of these broker groups has seen.

    Every node is asked, because a consumer may read from any. Nodes that do not answer are left out.
    """
    ext = encode_ext(ConsumerGroupHeader(consumer_group=group))
    nodes = [(name, address) for name in names for address in core.routes.group(name).addresses]
    answers = await asyncio.gather(
        *(core.call(address, RequestCode.DLEDGER_QUEUE_READERS, ext, deadline=deadline) for _, address in nodes),
        return_exceptions=True,
    )
    readers: dict[MessageQueue, QueueReader] = {}
    for (name, _), answer in zip(nodes, answers, strict=True):
        if not isinstance(answer, RemotingCommand):
            if not isinstance(answer, ClientError):
                raise answer
            continue
        if answer.code != ResponseCode.SUCCESS:
            continue
        for row in _decode_body(QueueReaders, answer).readers:
            queue = MessageQueue(row.topic, name, row.queue_id)
            reader = QueueReader(queue, tuple(row.client_ids), row.client_addr, row.idle_millis / 1000)
            if queue not in readers or reader.idle_seconds < readers[queue].idle_seconds:
                readers[queue] = reader
    return dict(sorted(readers.items()))


def _decode_body(body_type: type[BodyT], answer: RemotingCommand) -> BodyT:
    try:
        return decode_fastjson_body(body_type, answer.body)
    except RemotingError as error:
        raise refusal(error) from error
