"""Consumer groups as administrators see them: their members, how far they are, and who reads which queue."""

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
from dledger_remoting.headers import ConsumerGroupHeader, encode_ext
from dledger_remoting.heartbeat import MessageModel

from .core import ClientCore
from .errors import ClientError, refusal
from .messages import MessageQueue

BodyT = TypeVar("BodyT")


class QueueStatus(msgspec.Struct, frozen=True):
    """One queue as a group sees it: kept offsets are from `first` to `end` - 1; `committed` is None before a commit."""

    queue: MessageQueue
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        """How many messages the group has still to process."""
        return max(self.end - max(self.first if self.committed is None else self.committed, self.first), 0)


class GroupMember(msgspec.Struct, frozen=True):
    """A client that is in a consumer group, with what it subscribes to: expressions by topic."""

    client_id: str
    address: str
    language: str
    subscriptions: dict[str, str]
    broadcast: bool

    def __str__(self) -> str:
        return f"{self.client_id} ({self.address})"


class QueueReader(msgspec.Struct, frozen=True):
    """Who asked last for messages of a queue, `idle_seconds` ago; no `client_ids` for a reader that is no member."""

    queue: MessageQueue
    client_ids: tuple[str, ...]
    address: str
    idle_seconds: float


def members_of(answers: Mapping[str, RemotingCommand]) -> list[GroupMember]:
    """The members that one of the leaders named in its answer to 203, by client id."""
    found: dict[str, GroupMember] = {}
    for answer in answers.values():
        if answer.code != ResponseCode.SUCCESS:
            continue
        body = _read(ConsumerConnection, answer)
        broadcast = body.message_model is MessageModel.BROADCASTING
        for one in body.connection_set:
            member = GroupMember(one.client_id, one.client_addr, one.language, one.subscriptions, broadcast)
            found.setdefault(one.client_id, member)
    return [found[client_id] for client_id in sorted(found)]


def progress_of(answers: Mapping[str, RemotingCommand]) -> list[QueueStatus]:
    """What the leaders told of queues in their answers to 208, sorted by queue."""
    found: list[QueueStatus] = []
    for name, answer in answers.items():
        try:
            table = decode_consume_stats(answer.body)
        except RemotingError as error:
            raise refusal(error) from error
        for queue, progress in table.items():
            committed = progress.consumer_offset if progress.committed else None
            place = MessageQueue(queue.topic, name, queue.queue_id)
            found.append(QueueStatus(place, progress.min_offset, progress.broker_offset, committed))
    return sorted(found, key=lambda status: status.queue)


async def ask_readers(
    core: ClientCore, names: Iterable[str], group: str, deadline: float
) -> dict[MessageQueue, QueueReader]:
    """The newest reader of each queue that a node of these broker groups has seen; who does not answer is left out.

    Each node is asked, for a consumer may read from any.
    """
    ext = encode_ext(ConsumerGroupHeader(consumer_group=group))
    nodes = [(name, address) for name in names for address in core.routes.group(name).addresses]
    answers = await asyncio.gather(
        *(core.call(address, RequestCode.DLEDGER_QUEUE_READERS, ext, deadline=deadline) for _, address in nodes),
        return_exceptions=True,
    )
    found: dict[MessageQueue, QueueReader] = {}
    for (name, _), answer in zip(nodes, answers, strict=True):
        if not isinstance(answer, RemotingCommand):
            if not isinstance(answer, ClientError):
                raise answer
            continue
        if answer.code != ResponseCode.SUCCESS:
            continue
        for one in _read(QueueReaders, answer).readers:
            queue = MessageQueue(one.topic, name, one.queue_id)
            reader = QueueReader(queue, tuple(one.client_ids), one.client_addr, one.idle_millis / 1000)
            if queue not in found or reader.idle_seconds < found[queue].idle_seconds:
                found[queue] = reader
    return dict(sorted(found.items()))


def _read(body_type: type[BodyT], answer: RemotingCommand) -> BodyT:
    try:
        return decode_fastjson_body(body_type, answer.body)
    except RemotingError as error:
        raise refusal(error) from error
