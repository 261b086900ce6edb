"""The shapes of what workloads on brokers record, shared with the checkers.

| function | key | value | extras of an ok |
|---|---|---|---|
| `send` | topic | the message's value; it is stored at most once | `Stored` |
| `send-repeating` | topic | the same; attempts of unknown outcome are repeated | `Stored` |
| `send-idempotent` | topic | the same; the brokers are asked not to store a repetition | `Stored` |
| `send-ordered` | ordering key | the same, behind all earlier ones of its key | `Stored` |
| `send-batch` | topic | list of values | `StoredBatch` |
| `send-passing` | topic | the same, to a topic that is deleted meanwhile | `Stored` |
| `send-oneway` | topic | value; always `info` | |
| `send-delayed` | topic | the same, to be delivered later | `Delayed`, of any outcome |
| `recall` | topic | value of a delayed message, taken back; `fail`: it is delivered all the same | |
| `send-back` | the topic it goes to | its value there; each may store a copy | `Delayed` of any outcome, if it waits |
| `came-again` | value of its body | [the topic, and the byte of the log, that it was sent to at first] | |
| `send-half` | topic | the same, as the half of a transaction | |
| `find-half` | value | whether the half is found by its key, which is its value | |
| `end-half` | value | `commit` or `rollback`: what its producer asks for | |
| `check` | value | `commit`, `rollback` or `unknown`: what a producer answers a broker that asks; always `info` | |
| `pull` | queue | list of `Seen` | `Pulled`; `node` and `offset` of any outcome |
| `scan` | queue | list of `Seen`; as `pull`, after everything has healed | `Pulled` |
| `bounds` | queue | [first kept offset, end offset] | |
| `view` | queue | [offset, value] looked for | `Found` |
| `end` | queue | the offset that the next message will get | |
| `deliver` | queue | `Seen`: a message given to a member of a group, `process`, who may take time or fail | |
| `traced` | value | `Traced`: what a trace tells of the send of it | |
| `read-traces` | topic of the traces | null: all of them were read | |
| `pop` | topic | list of `Popped` | `Hidden` of any outcome |
| `ack` | topic | list of `Popped`: messages of one request that are done with | |
| `hide` | topic | `Popped`; its pop time is another one if it is ok | `Hidden` of any outcome |
| `kept` | queue | `bounds` of what nobody sent | |
| `request` | topic | the message's value, which its producer waits for a reply to | `Replied` |
| `reply` | value of the request | value of the reply | |
| `lock` | group@queue | null; `fail`: it is not granted | |
| `unlock` | group@queue | null; its lock is given up from the call on | |
| `commit` | group@queue | offset | |
| `committed` | group@queue | the committed offset read, null if there is none | |
| `reset` | group | list of [queue, offset that it is to go on at], null if only the answer to it tells | |
| `group-offsets` | group | list of [queue, committed offset], null where there is none | |
| `create`, `delete` | `topic:NAME` or `group:NAME` | true, false | |
| `read` | the same | whether it exists | |
| `write`, `read` | group@broker group | [`PULL` or `POP`, number]: how it consumes, null if nothing was set | |
| `assign` | group@broker group | list of [`PULL` or `POP`, queue]: what a member is to consume, null: what it has | |
| `settle-PULL`, `settle-POP` | the same | as `assign`, once this mode was set and everything has healed | |

A queue's key is `topic/broker group/queue id`. A message that a consumer has sent back has a value of its own each time
that it comes again: see `value_of`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from dledger_chaos.history import Operation
from dledger_client import MessageQueue, ReceivedMessage, SendResult
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.ids import parse_offset_message_id

from .payload import decode_payload

_ExtrasT = TypeVar("_ExtrasT")


class Seen(NamedTuple):
    """A message that was read: its queue offset, its value (see `payload`), its byte position in the log."""

    offset: int
    value: str
    position: int


class Stored(msgspec.Struct, frozen=True):
    """Where an acknowledgement said that a message lies. `position` is -1 if the answer did not name it."""

    queue: str
    offset: int
    position: int = -1


class StoredBatch(msgspec.Struct, frozen=True):
    """The same for the messages of a batch, in their order."""

    queue: str
    offsets: list[int]
    positions: list[int]


class Delayed(msgspec.Struct, frozen=True):
    """How much later a message is asked to be delivered than it is sent."""

    delay_ms: int


class Popped(NamedTuple):
    """A message that a pop has brought: its queue, which may be that of a retry topic, its offset there, the value of
    its body, how often it came again, and the pop time of its delivery.
    """

    queue: str
    offset: int
    value: str
    times: int
    pop_time_ms: int


class Traced(NamedTuple):
    """What a trace tells of a send: whether it succeeded, and the byte of the log where the message lies, or -1."""

    succeeded: bool
    position: int


class Hidden(msgspec.Struct, frozen=True):
    """How long messages are to be hidden from the other members of a group."""

    invisible_ms: int


class Replied(msgspec.Struct, frozen=True):
    """What became of a request: the value of the reply; or that it waited for one until its time was over, having been
    acknowledged.
    """

    reply: str = ""
    waited: bool = False


class Pulled(msgspec.Struct, frozen=True):
    """`offset` is what was asked for, `code` the answer's, `next_offset` where it said to go on; `node` answered."""

    node: str
    offset: int
    code: int
    next_offset: int


class Found(msgspec.Struct, frozen=True):
    """`found` is the value of the message where one was looked for, None if there was none; `by` says how."""

    found: str | None
    by: str


def extras(operation: Operation, kind: type[_ExtrasT]) -> _ExtrasT:
    """An operation's extras in their shape. Raises `msgspec.ValidationError`."""
    return msgspec.convert(operation.extras, kind)


def seen(operation: Operation) -> list[Seen]:
    """What a `pull` or `scan` found. Raises `msgspec.ValidationError`."""
    return msgspec.convert(operation.value, list[Seen])


def stored(result: SendResult) -> Stored:
    """What a send was told."""
    return Stored(queue_key_of(result), result.queue_offset, position_of(result.offset_message_id))


def queue_key_of(result: SendResult) -> str:
    """The key of the queue that a send was told."""
    return str(MessageQueue(result.topic, result.broker_group, result.queue_id))


def stored_batch(results: list[SendResult]) -> StoredBatch:
    """What the send of a batch was told."""
    return StoredBatch(
        queue_key_of(results[0]),
        [result.queue_offset for result in results],
        [position_of(result.offset_message_id) for result in results],
    )


def seen_of(message: ReceivedMessage) -> Seen:
    """A message as it is recorded."""
    return Seen(message.queue_offset, value_of(message.body, message.reconsume_times), message.physical_offset)


def value_of(body: bytes, reconsume_times: int) -> str:
    """A message's value: that of its body, and `#n` if it comes again for the nth time."""
    value = decode_payload(body)
    return f"{value}#{reconsume_times}" if reconsume_times else value


def position_of(offset_message_id: str) -> int:
    """The byte of the log that a message id names, -1 if it names none."""
    try:
        return parse_offset_message_id(offset_message_id)[1]
    except InvalidParameter:
        return -1
