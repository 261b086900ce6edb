"""Records as a leader writes them, without requests around them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dledger.errors import LogFullError
from dledger.log import Log
from dledger.store.disk import Buffer
from dledger_broker.kernel.contexts import QueueRun
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.scan import tag_code_of
from dledger_broker.views.units import UNIT
from dledger_remoting.hosts import HostAddress
from dledger_remoting.properties import KEYS, TAGS, UNIQUE_KEY, format_properties
from dledger_remoting.record import MessageRecord, encode_record

HOST = HostAddress("127.0.0.1", 10911)


class Message(msgspec.Struct, frozen=True):
    """A producer's fields of a message. Empty texts are left out of the properties."""

    body: bytes = b"body"
    tags: str = ""
    keys: str = ""
    unique_key: str = ""

    def properties(self) -> bytes:
        """Return the property text of the record."""
        named = {UNIQUE_KEY: self.unique_key, KEYS: self.keys, TAGS: self.tags}
        return format_properties({name: value for name, value in named.items() if value}).encode()


class SentMessages:
    """The context of staged messages. It notes their outcome."""

    def __init__(self) -> None:
        self.runs: list[QueueRun] = []
        self.extent = (0, 0)
        self.outcome: str | None = None

    def applied(self) -> None:
        """Note that the messages are applied."""
        self.outcome = "applied"

    def dropped(self, full: LogFullError | None) -> None:
        """Note that the messages were dropped, or refused for want of space."""
        self.outcome = "dropped" if full is None else "refused"


def stage_messages(node: Log, queue: QueueState, messages: Sequence[Message], store_timestamp: int) -> SentMessages:
    """Stage messages for one queue as a single unit. Return its context."""
    first_offset = queue.staged_offset
    records = [
        MessageRecord(
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=first_offset + number,
            physical_offset=0,
            body=message.body,
            properties=message.properties(),
            born_timestamp=store_timestamp,
            born_host=HOST,
            store_timestamp=store_timestamp,
            store_host=HOST,
        )
        for number, message in enumerate(messages)
    ]
    sizes = [len(encode_record(record)) for record in records]
    context = SentMessages()

    def fill(position: int) -> Sequence[Buffer]:
        parts: list[Buffer] = []
        units: list[bytes] = []
        context.extent = (position, position + sum(sizes))
        for record, size in zip(records, sizes, strict=True):
            parts.append(encode_record(msgspec.structs.replace(record, physical_offset=position)))
            units.append(UNIT.pack(position, size, tag_code_of(record.properties)))
            position += size
        context.runs.append((queue, first_offset + len(units), b"".join(units)))
        return parts

    node.stage(sum(sizes), fill, context=context)
    queue.staged_offset += len(messages)
    return context
