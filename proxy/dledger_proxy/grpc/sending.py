"""Requests of producers: SendMessage and RecallMessage.

A repeated request is recognised by the ids of its messages, and stored once. For that it goes to the same queue, which
follows from the id, or from the message group. Brokers do not recognise a repeated transaction's message.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from dledger_client.cluster.routes import TopicRoute, queue_of_key
from dledger_client.errors import ClientError, SendError
from dledger_client.messages import MessageQueue
from dledger_client.results import SendResult
from dledger_client.sending.sender import STORED_CODES, QueueChoice
from dledger_client.sending.wire import Outgoing, results_in
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import IllegalOperation, MessageIllegal
from dledger_remoting.headers import RecallMessageHeader, encode_ext
from dledger_remoting.message_types import MessageType, require_accepted, type_of_topic
from dledger_remoting.recalls import RecallHandle

from ..backends import PRODUCER_GROUP, Backends
from .answers import Refusal, ok, refusal_of, status
from .callers import Caller, topic_name
from .definition import messaging_pb2 as pb
from .outgoing import Encoder, kind_of, request_topic
from .tokens import Transaction, encode_token


class Sending:
    """Stores messages. With `checks_types`, topics take only messages of the kinds that their attribute names."""

    def __init__(self, backends: Backends, encoder: Encoder, *, checks_types: bool) -> None:
        self._backends = backends
        self._encoder = encoder
        self._checks_types = checks_types

    async def send(self, caller: Caller, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Store the messages of a request. Returns their places, one entry for each."""
        messages, deadline = list(request.messages), self._backends.deadline(caller.deadline)
        topic = request_topic(messages)
        kinds = {kind_of(message) for message in messages}
        if len(messages) > 1 and kinds != {pb.NORMAL}:
            raise Refusal(
                pb.BAD_REQUEST, "a request of several messages takes only NORMAL ones: send others one by one"
            )
        (kind,) = kinds
        await self._require_accepted(topic, kind, deadline)
        outgoing = (
            self._encoder.encode(caller, topic, messages[0], kind)
            if len(messages) == 1
            else self._encoder.encode_all(caller, topic, messages)
        )
        results, code = await self._deliver(outgoing, self._choice(messages[0], kind), kind, deadline)
        if code != pb.OK:
            return pb.SendMessageResponse(status=status(code, "stored, but not flushed or replicated in time"))
        entries = [_entry(topic, kind, result) for result in results]
        return pb.SendMessageResponse(status=ok(), entries=entries)

    async def recall(self, caller: Caller, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Recall a message that waits for its time. Once this is answered OK, it is not delivered any more."""
        topic, deadline = topic_name(request.topic), self._backends.deadline(caller.deadline)
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except IllegalOperation as error:
            raise Refusal(pb.BAD_REQUEST, error.remark) from error
        await self._require_accepted(topic, pb.DELAY, deadline)
        await self._backends.know_group(handle.broker_group, topic, deadline)
        ext = {**encode_ext(RecallMessageHeader(topic, request.recall_handle, PRODUCER_GROUP)), **caller.ext}
        answer = await self._backends.ask(handle.broker_group, RequestCode.RECALL_MESSAGE, ext, deadline=deadline)
        return pb.RecallMessageResponse(status=ok(), message_id=answer.ext.get("msgId", handle.unique_key))

    async def _require_accepted(self, topic: str, kind: pb.MessageType, deadline: float) -> None:
        """Raise `Refusal` unless a topic takes messages of a kind."""
        if not self._checks_types:
            return
        settings = await self._backends.topic(topic, deadline)
        try:
            require_accepted(topic, type_of_topic(settings.attributes), MessageType(pb.MessageType.Name(kind)))
        except MessageIllegal as error:
            raise Refusal(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, error.remark) from error

    def _choice(self, message: pb.Message, kind: pb.MessageType) -> QueueChoice:
        if kind == pb.TRANSACTION:
            return self._backends.sender.next_queue
        system = message.system_properties
        if kind == pb.FIFO:
            return lambda route: queue_of_key(route, system.message_group)
        return lambda route: _queue_of_id(route, system.message_id)

    async def _deliver(
        self, outgoing: Outgoing, choose: QueueChoice, kind: pb.MessageType, deadline: float
    ) -> tuple[Sequence[SendResult], pb.Code]:
        await self._backends.route(outgoing.topic, deadline)  # a send would create the topic
        try:
            delivered = await self._backends.sender.deliver(outgoing, choose, deadline)
        except SendError as error:
            refusal = _refusal_of_send(error, kind)
            raise refusal from error
        results = results_in(
            outgoing,
            delivered.queue.broker_group,
            delivered.placement,
            replicated=delivered.code == ResponseCode.SUCCESS,
            maybe_stored=delivered.maybe_stored,
        )
        return results, _STORED.get(delivered.code, pb.OK)


_STORED = {
    int(ResponseCode.FLUSH_DISK_TIMEOUT): pb.MASTER_PERSISTENCE_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): pb.SLAVE_PERSISTENCE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): pb.HA_NOT_AVAILABLE,
}
"""Codes of messages that RocketMQ's own brokers have stored less well than asked. Ours answer none of them."""
assert _STORED.keys() | {int(ResponseCode.SUCCESS)} == set(map(int, STORED_CODES))


def _queue_of_id(route: TopicRoute, message_id: str) -> MessageQueue:
    """Return the queue of a message's id, on a broker group that has a node now."""
    queues = route.writable or route.all_writable
    return queues[crc32(message_id.encode()) % len(queues)]


def _refusal_of_send(error: SendError, kind: pb.MessageType) -> Refusal:
    refusal = refusal_of(error)
    cause = error.__cause__
    if error.code == ResponseCode.MESSAGE_ILLEGAL:
        text = str(refusal)
        if kind == pb.DELAY and "delay" in text.lower():
            return Refusal(pb.ILLEGAL_DELIVERY_TIME, text)
    if error.outcome == "unknown" and isinstance(cause, ClientError):
        return Refusal(refusal.code, f"{refusal} (it may be stored: sending it again with its id is safe)")
    return refusal


def _entry(topic: str, kind: pb.MessageType, result: SendResult) -> pb.SendResultEntry:
    entry = pb.SendResultEntry(
        status=ok(),
        message_id=result.message_id,
        offset=result.queue_offset,
        recall_handle=result.recall_handle or "",
    )
    if kind == pb.TRANSACTION:
        place = Transaction(result.broker_group, int(result.offset_message_id[-16:], 16), result.queue_offset)
        entry.transaction_id = encode_token(place, topic, result.message_id)
    return entry
