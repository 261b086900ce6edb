"""OpenTelemetry's semantic conventions of messaging, as far as they concern RocketMQ: names, and attributes of calls.

The names are those of version 1.44 (`docs/messaging/rocketmq.md` of open-telemetry/semantic-conventions). OpenTelemetry
marks them as in development, so the package of their names may change: they stand here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias

from opentelemetry.util.types import AttributeValue

from dledger_client import ClientError, Message, ReceivedMessage, RefusedError, Reply, SendError, SendResult
from dledger_client.interception import Caller
from dledger_remoting import properties as names
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.topics import DLQ_PREFIX

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

Attributes: TypeAlias = dict[str, AttributeValue]
OperationType: TypeAlias = Literal["create", "send", "receive", "process", "settle"]

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
BATCH_COUNT: Final = "messaging.batch.message_count"
NAMESPACE: Final = "messaging.rocketmq.namespace"
CONSUMPTION_MODEL: Final = "messaging.rocketmq.consumption_model"
TYPE: Final = "messaging.rocketmq.message.type"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELIVERY_TIMESTAMP: Final = "messaging.rocketmq.message.delivery_timestamp"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
PEER_ADDRESS: Final = "network.peer.address"
PEER_PORT: Final = "network.peer.port"
ERROR_TYPE: Final = "error.type"

OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"

DURATION_BOUNDARIES_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Boundaries of the buckets of both durations, in seconds."""

METRIC_NAMES: Final = (SYSTEM, OPERATION_NAME, DESTINATION, GROUP, SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE)
"""Attributes of all metrics. The queue is left out: its number of values is large, and no metric needs it."""


def attributes_of(caller: Caller, operation: str, kind: OperationType, destination: str | None) -> Attributes:
    """Return what is known of an operation before it begins.

    The server is the first name server that the client was given: its address stands for the cluster.
    """
    host, _, port = caller.name_servers[0].rpartition(":")
    attributes: Attributes = {
        SYSTEM: "rocketmq",
        OPERATION_NAME: operation,
        OPERATION_TYPE: kind,
        NAMESPACE: caller.namespace,
        CLIENT_ID: caller.client_id,
        SERVER_ADDRESS: host.strip("[]"),
        SERVER_PORT: int(port),
    }
    if destination is not None:
        attributes[DESTINATION] = destination
    return attributes


def consumer_attributes(caller: Caller) -> Attributes:
    """Return the attributes of consumers' operations."""
    return {GROUP: caller.group, CONSUMPTION_MODEL: "broadcasting" if caller.is_broadcast else "clustering"}


def work_attributes(message: ReceivedMessage[object], group: str) -> Attributes:
    """Return the attributes of work on a message of which only the consumer's group is known."""
    attributes: Attributes = {
        SYSTEM: "rocketmq",
        OPERATION_NAME: "process",
        OPERATION_TYPE: "process",
        NAMESPACE: message.properties.get(names.INSTANCE_ID, ""),
        DESTINATION: destination_of(message),
        GROUP: group,
    }
    return attributes | received_attributes(message)


def span_name(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the name of a span: the operation, and its destination if there is one."""
    destination = attributes.get(DESTINATION)
    operation = str(attributes[OPERATION_NAME])
    return operation if destination is None else f"{operation} {destination!s}"


def metric_attributes(attributes: Mapping[str, AttributeValue]) -> Attributes:
    """Return the attributes of an operation that its metrics have, too."""
    return {name: attributes[name] for name in METRIC_NAMES if name in attributes}


def outgoing_attributes(message: Message, *, in_transaction: bool = False) -> Attributes:
    """Return the attributes of one message that is to be sent."""
    attributes: Attributes = {TYPE: "normal"}
    if in_transaction:
        attributes[TYPE] = "transaction"
    elif message.delay_s is not None or message.deliver_at is not None:
        attributes[TYPE] = "delay"
        attributes[DELIVERY_TIMESTAMP] = _delivery_ms(message)
    elif message.ordering_key is not None:
        attributes[TYPE] = "fifo"
    if message.ordering_key is not None:
        attributes[MESSAGE_GROUP] = message.ordering_key
    if message.tags:
        attributes[TAG] = message.tags
    if isinstance(message.key, str):
        attributes[KEYS] = message.key.split()
    elif isinstance(message.key, Sequence):  # an iterator can be read once, by the client
        attributes[KEYS] = list(message.key)
    if message.unique_key is not None:
        attributes[MESSAGE_ID] = message.unique_key
    return attributes


def _delivery_ms(message: Message) -> int:
    if isinstance(message.deliver_at, datetime):
        return int(message.deliver_at.timestamp() * 1000)
    if message.deliver_at is not None:
        return message.deliver_at
    return int(time.time() * 1000 + (message.delay_s or 0.0) * 1000)


def stored_attributes(result: SendResult) -> Attributes:
    """Return the place of a stored message, and the address by which clients know the node that stored it."""
    attributes: Attributes = {
        MESSAGE_ID: result.message_id,
        PARTITION: f"{result.broker_group}/{result.queue_id}",
    }
    try:
        host, _ = parse_offset_message_id(result.offset_message_id)
    except InvalidParameter:  # not every broker tells the place of each message of a batch
        return attributes
    return attributes | {PEER_ADDRESS: host.ip, PEER_PORT: host.port}


def destination_of(message: ReceivedMessage[object]) -> str:
    """Return the topic from which a message came: for one that came again, the topic to which it was sent."""
    return message.queue.topic if message.queue.topic.startswith(DLQ_PREFIX) else message.topic


def received_attributes(message: ReceivedMessage[object] | Reply) -> Attributes:
    """Return the attributes of one message that came."""
    properties = message.properties
    attributes: Attributes = {}
    if isinstance(message, ReceivedMessage):
        attributes[MESSAGE_ID] = message.message_id
        if names.RETRY_TOPIC not in properties:
            attributes[PARTITION] = f"{message.queue.broker_group}/{message.queue_id}"
        if message.tags:
            attributes[TAG] = message.tags
        if message.keys:
            attributes[KEYS] = message.keys
        attributes[TYPE] = _type_of(properties)
        if (group := properties.get(names.SHARDING_KEY)) is not None:
            attributes[MESSAGE_GROUP] = group
    if (conversation := properties.get(names.CORRELATION_ID)) is not None:
        attributes[CONVERSATION_ID] = conversation
    return attributes


def _type_of(properties: Mapping[str, str]) -> str:
    if names.TRANSACTION_PREPARED in properties:
        return "transaction"
    # A message that comes again waited for its group, not for its sender.
    if names.RETRY_TOPIC not in properties and not properties.keys().isdisjoint(_DELAYS):
        return "delay"
    return "fifo" if names.SHARDING_KEY in properties else "normal"


_DELAYS: Final = frozenset(
    {names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS}
)


def in_common(each: Iterable[Attributes]) -> Attributes:
    """Return the attributes that all messages of a batch share."""
    common: Attributes | None = None
    for attributes in each:
        if common is None:
            common = attributes
        else:
            common = {name: value for name, value in common.items() if attributes.get(name) == value}
    return common or {}


def without(common: Mapping[str, AttributeValue], attributes: Attributes) -> Attributes:
    """Return the attributes of one message that the batch does not share."""
    return {name: value for name, value in attributes.items() if name not in common}


def error_type(error: BaseException) -> str:
    """Return the type of an error: the name of a broker's response code, or of the class.

    A `SendError` stands for the error of its last attempt.
    """
    if isinstance(error, SendError) and isinstance(error.__cause__, ClientError):
        error = error.__cause__
    if isinstance(error, RefusedError):
        try:
            return ResponseCode(error.code).name
        except ValueError:
            return str(error.code)
    return type(error).__qualname__
