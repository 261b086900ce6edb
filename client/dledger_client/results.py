"""Results of sends, which errors carry too: a batch may have been stored in part."""

from __future__ import annotations

import msgspec

from dledger_remoting.headers import SendMessageResponseHeader

from .wire import Outgoing


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where an acknowledged message lies.

    `message_id` is the unique key, which consumers see as `ReceivedMessage.message_id`; `offset_message_id` says where
    the message lies, and is what `Admin.message_by_id` takes.
    `recall_handle` is what `Producer.recall` takes, of a message that is delivered later.
    `replicated` is False only if a RocketMQ broker stored the message but could not flush or replicate it in time.
    """

    message_id: str
    offset_message_id: str
    topic: str
    broker_group: str
    queue_id: int
    queue_offset: int
    replicated: bool = True
    recall_handle: str | None = None


def results_in(
    outgoing: Outgoing, broker_group: str, placement: SendMessageResponseHeader, *, replicated: bool
) -> list[SendResult]:
    """One result per message of a request; a batch's messages have consecutive queue offsets."""
    offset_ids = placement.msg_id.split(",")
    return [
        SendResult(
            unique_key,
            offset_ids[index] if index < len(offset_ids) else "",
            outgoing.topic,
            broker_group,
            placement.queue_id,
            placement.queue_offset + index,
            replicated,
            placement.recall_handle,
        )
        for index, unique_key in enumerate(outgoing.unique_keys)
    ]
