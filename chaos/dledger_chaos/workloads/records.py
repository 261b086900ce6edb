"""Operations that workloads on brokers record, and the types of their values and extras.

A message is recorded by its value, which its body has (see `payload`). A queue's key is `topic/broker group/queue id`.
Extras marked "always" are recorded with every outcome, all others only with `ok`.

| function | operation | key | value | extras |
|---|---|---|---|---|
| `send` | sends a message, without repetition after an unknown outcome | topic | message | `Stored` |
| `send-repeating` | sends a message, repeated after unknown outcomes | topic | message | `Stored` |
| `send-idempotent` | like `send-repeating`, but brokers store no repetition | topic | message | `Stored` |
| `send-ordered` | sends a message behind earlier ones of its key | ordering key | message | `Stored` |
| `send-batch` | sends a batch | topic | list of messages | `StoredBatch` |
| `send-passing` | sends a message to a topic that is deleted meanwhile | topic | message | `Stored` |
| `send-oneway` | sends a message one-way; the outcome is never `ok` | topic | message | |
| `send-delayed` | sends a delayed message | topic | message | always `Delayed` |
| `recall` | recalls a delayed message; `fail`: it is delivered nevertheless | topic | message | |
| `send-back` | sends a message back, which may store a copy | topic of the copy | copy | always `Delayed`, if delayed |
| `came-again` | a copy was read | body's value | [topic, position in the log] of the original | |
| `send-half` | sends the half of a transaction | topic | message | |
| `find-half` | looks a half up by its key | message | true if it was found | |
| `end-half` | ends a half | message | `commit` or `rollback` | |
| `check` | answers a broker's check; always `info` | message | `commit`, `rollback` or `unknown` | |
| `pull` | pulls messages from a node | queue | list of `Seen` | `Pulled`, always its `node` and `offset` |
| `scan` | like `pull`, after healing | queue | list of `Seen` | `Pulled`, always its `node` and `offset` |
| `bounds` | reads a queue's bounds after healing | queue | [first offset, end offset] | |
| `view` | looks a message up | queue | [offset, message] | `Found` |
| `end` | reads a queue's end offset | queue | end offset | |
| `deliver` | a member, `process`, handles a message | queue | `Seen` | |
| `stay` | a final member starts | prefix of the members' names | null | |
| `traced` | the trace of a send was read | message | `Traced` | |
| `read-traces` | reads all traces | topic of the traces | null | |
| `pop` | pops messages | topic | list of `Popped` | always `Hidden` |
| `ack` | acknowledges popped messages in one request | topic | list of `Popped` | |
| `hide` | changes an invisible time | topic | `Popped`, with the new pop time if `ok` | always `Hidden` |
| `kept` | reads the bounds of a queue of a retry topic | queue | [first offset, end offset] | |
| `request` | sends a message and waits for a reply | topic | message | `Replied`, also without a reply in time |
| `reply` | replies to a request | request | reply | |
| `lock` | requests a lock; `fail`: it is refused | group@queue | null | |
| `unlock` | releases a lock, which does not count from the call on | group@queue | null | |
| `commit` | commits an offset | group@queue | offset | |
| `committed` | reads a committed offset | group@queue | offset, null without one | |
| `reset` | resets offsets | group | list of [queue, offset], or null while only the answer has it | |
| `group-offsets` | reads a group's committed offsets | group | list of [queue, offset], or null without one | |
| `create`, `delete` | creates or deletes | `topic:NAME` or `group:NAME` | true for `create`, else false | |
| `read` | looks a name up | `topic:NAME` or `group:NAME` | true if it exists | |
| `write`, `read` | sets or reads a request mode | group@broker group | [`PULL` or `POP`, number], null without one | |
| `assign` | asks for queues | group@broker group | list of [`PULL` or `POP`, queue], null to keep the present | |
| `settle-PULL`, `settle-POP` | like `assign`, after this mode was set | group@broker group | like `assign` | |

Each copy of a message that a consumer has sent back has a value of its own: see `value_of`. Values of `registers` are
in the module of that workload.
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
    """A message that was read: its queue offset, its value (see `payload`), its position in the log, or -1."""

    offset: int
    value: str
    position: int


class Stored(msgspec.Struct, frozen=True):
    """Place of a message by its acknowledgement. `position` is -1 if the answer did not name it."""

    queue: str
    offset: int
    position: int = -1


class StoredBatch(msgspec.Struct, frozen=True):
    """Places of the messages of a batch by their acknowledgement, in the order of the batch."""

    queue: str
    offsets: list[int]
    positions: list[int]


class Delayed(msgspec.Struct, frozen=True):
    """Requested delay between the send and the delivery of a message."""

    delay_ms: int


class Popped(NamedTuple):
    """A popped message: its queue, which may be of a retry topic, its offset there, and the value of its body.

    `times` is the number of earlier deliveries, `pop_time_ms` the pop time of this delivery.
    """

    queue: str
    offset: int
    value: str
    times: int
    pop_time_ms: int


class Traced(NamedTuple):
    """Trace of a send: its success, and the byte of the log at which the message lies, or -1."""

    succeeded: bool
    position: int


class Hidden(msgspec.Struct, frozen=True):
    """Requested invisible time of messages."""

    invisible_ms: int


class Pulled(msgspec.Struct, frozen=True):
    """`node` answered a pull from `offset` with `code`, and `next_offset` at which to continue."""

    node: str
    offset: int
    code: int
    next_offset: int


class Found(msgspec.Struct, frozen=True):
    """`found` is the value of the found message, None without a message; `by` is the kind of look-up."""

    found: str | None
    by: str


def extras(operation: Operation, kind: type[_ExtrasT]) -> _ExtrasT:
    """Return an operation's extras as an object of their type. Raises `msgspec.ValidationError`."""
    return msgspec.convert(operation.extras, kind)


def seen(operation: Operation) -> list[Seen]:
    """Return the messages that a `pull` or `scan` found. Raises `msgspec.ValidationError`."""
    return msgspec.convert(operation.value, list[Seen])


def stored(result: SendResult) -> Stored:
    """Return the record of a send's acknowledgement."""
    return Stored(queue_key_of(result), result.queue_offset, position_of(result.offset_message_id))


def queue_key_of(result: SendResult) -> str:
    """Return the key of the queue that a send's acknowledgement names."""
    return str(MessageQueue(result.topic, result.broker_group, result.queue_id))


def stored_batch(results: list[SendResult]) -> StoredBatch:
    """Return the record of a batch's acknowledgement."""
    return StoredBatch(
        queue_key_of(results[0]),
        [result.queue_offset for result in results],
        [position_of(result.offset_message_id) for result in results],
    )


def seen_of(message: ReceivedMessage) -> Seen:
    """Return the record of a message."""
    return Seen(message.queue_offset, value_of(message.body, message.reconsume_times), message.physical_offset)


def value_of(body: bytes, reconsume_times: int) -> str:
    """Return a message's value: the value of its body, and `#n` for its nth repetition."""
    value = decode_payload(body)
    return f"{value}#{reconsume_times}" if reconsume_times else value


def position_of(offset_message_id: str) -> int:
    """Return the position in the log that a message id names, -1 if it names none."""
    try:
        return parse_offset_message_id(offset_message_id)[1]
    except InvalidParameter:
        return -1
