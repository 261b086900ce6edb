"""Bodies of a consumer's answers to operators, whose requests come through a broker.

Request 307 asks for the running state, request 309 has the consumer consume one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from .fastjson import FastJsonValue, encode_fastjson
from .heartbeat import SubscriptionData
from .topics import MessageQueue

NAME_SERVERS: Final = "PROP_NAMESERVER_ADDR"
CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
POOL_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
STARTED_AT: Final = "PROP_CONSUMER_START_TIMESTAMP"


class ProcessQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue that a consumer reads.

    The `cached_` fields describe messages that the consumer has received and not finished. Times are in ms since 1970.
    """

    commit_offset: int
    cached_msg_min_offset: int
    cached_msg_max_offset: int
    cached_msg_count: int
    cached_msg_size_in_mi_b: int = msgspec.field(name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool
    try_unlock_times: int = 0
    last_lock_timestamp: int
    droped: bool = False
    last_pull_timestamp: int
    last_consume_timestamp: int


class ConsumeResult(StrEnum):
    """Outcome of consuming a message on an operator's request."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    RAISED = "CR_THROW_EXCEPTION"
    UNFINISHED = "CR_RETURN_NULL"


def encode_running(
    properties: Mapping[str, str],
    subscriptions: Sequence[SubscriptionData],
    queues: Mapping[MessageQueue, ProcessQueue],
    own: Mapping[str, str],
    stacks: str | None,
) -> bytes:
    """Encode the answer to 307, in fastjson's dialect. `own` holds what our client reports beyond Java's fields."""
    table: dict[msgspec.Struct, FastJsonValue] = {queue: row for queue, row in queues.items()}  # noqa: C416 - keys widen
    none: dict[str, FastJsonValue] = {}
    body: dict[str, FastJsonValue] = {
        "properties": dict(properties),
        "subscriptionSet": list(subscriptions),
        "mqTable": table,
        "mqPopTable": none,
        "statusTable": none,
        "userConsumerInfo": dict(own),
        "jstack": stacks,
    }
    return encode_fastjson(body)


def encode_result(result: ConsumeResult, remark: str | None, took_ms: int, *, in_order: bool) -> bytes:
    """Encode the answer to 309."""
    body: dict[str, FastJsonValue] = {
        "order": in_order,
        "autoCommit": True,
        "consumeResult": str(result),
        "remark": remark,
        "spentTimeMills": took_ms,
    }
    return encode_fastjson(body)
