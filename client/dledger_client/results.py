"""Results of sends. Errors carry them too, because a batch may have been stored in part."""

from __future__ import annotations

import msgspec


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Place of an acknowledged message.

    `message_id` is the unique key, which consumers see as `ReceivedMessage.message_id`; `offset_message_id` says where
    the message lies, and is what `Admin.message_by_id` takes. `recall_handle` is what `Producer.recall` takes, of a
    message that is delivered later. `remembered` says whether the broker group will know a repetition of an idempotent
    send. `repeated` says whether this send was itself recognised as a repetition. They are None and False if the leader
    does not report them. `perhaps_twice` is True if an earlier attempt of this send may have stored the message as
    well. `replicated` is False only if a RocketMQ broker stored the message but could not flush or replicate it in
    time.
    """

    message_id: str
    offset_message_id: str
    topic: str
    broker_group: str
    queue_id: int
    queue_offset: int
    replicated: bool = True
    recall_handle: str | None = None
    remembered: bool | None = None
    repeated: bool = False
    perhaps_twice: bool = False
