"""Encoder of a record's tail, which follows the body: the topic, the client's properties, and the broker's
properties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

from dledger.format import MAX_UNIT_BYTES
from dledger_broker.features.delay.asked import find_delay
from dledger_broker.features.sending.targets import PropertiesLayout, SendTarget
from dledger_broker.features.sending.unsupported import check_properties
from dledger_broker.kernel.records import MessageParts
from dledger_broker.views.scan import tag_code_of
from dledger_remoting.batch import MIN_MESSAGE_BYTES, split_batch
from dledger_remoting.errors import MessageIllegal
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.properties import (
    CLUSTER,
    MSG_REGION,
    TAGS,
    UNIQUE_KEY,
    find_property,
    format_properties,
    without_broker_owned,
)
from dledger_remoting.record import MAX_PROPERTIES_BYTES, RECORD_HEAD_BYTES

MAX_KNOWN_TAGS: Final = 4_096
MAX_KNOWN_LAYOUTS: Final = 64
SLICE_MESSAGES: Final = 4_096
"""Number of messages of a batch that are completed one by one in a turn of the event loop: 40 ms of a core."""

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()
_UNIQUE_KEY_MARK: Final = _UNIQUE_KEY + b"\x01"
_TAGS: Final = TAGS.encode()
_TAGS_MARK: Final = _TAGS + b"\x01"

Complete: TypeAlias = Callable[[bytes, SendTarget], tuple[bytes, bytes, int, bool]]
"""Signature of `RecordTails.complete`."""

PreparedBatch: TypeAlias = tuple[list[MessageParts], bool]
"""Messages of a batch, and whether each arrived with a unique key."""

_pack_length: Final = Struct(">H").pack


class BatchNeedsSlices(MessageIllegal):
    """Error of a batch with more messages than are completed one by one in a turn of the event loop: see
    `large_batches`.
    """


class RecordTails:
    """Encoder of tails. Each message gets the names of `cluster` and `region`, which may be empty, and a unique key.

    `wall_ms` is the clock for the keys of messages that arrived without a key.
    """

    def __init__(self, cluster: str, region: str, unique_keys: UniqueKeyGenerator, wall_ms: Callable[[], int]) -> None:
        self._own = format_properties({CLUSTER: cluster} | ({MSG_REGION: region} if region else {})).encode()
        self._own_after_open_end = b"\x02" + self._own
        self._unique_keys = unique_keys
        self._wall_ms = wall_ms
        self._tag_codes: dict[bytes, int] = {}

    def complete(self, properties: bytes, target: SendTarget) -> tuple[bytes, bytes, int, bool]:
        """Return a record's tail, the message's unique key, its tag code, and whether the message arrived with the key.

        Raises `MessageIllegal` if the properties are too long, ask for a delay, or for what this broker does not have.
        """
        layout = target.layouts.get(len(properties))
        if layout is not None:
            before, behind, key_end, head, added, tag_code = layout
            if properties.startswith(before) and properties.endswith(behind):
                unique_key = properties[len(before) : key_end]
                # The key then ends where the layout says, and holds no mark of another property.
                if unique_key.isalnum():
                    return head + properties + added, unique_key, tag_code, True
        return self._complete(properties, target)

    def complete_anew(self, properties: bytes, target: SendTarget) -> tuple[bytes, bytes, int, bool]:
        """Complete properties as `complete` does, even if they ask for a delay. Their layout is not remembered.

        Raises `MessageIllegal` if they are too long, or ask for what this broker does not have.
        """
        return self._build(without_broker_owned(properties), target)[0]

    def _complete(self, properties: bytes, target: SendTarget) -> tuple[bytes, bytes, int, bool]:
        properties = without_broker_owned(properties)
        if target.retry_group is None:
            delay = find_delay(properties)
            if delay is not None:
                raise MessageIllegal(
                    f"property {delay.name} = {delay.value} asks for a delay, which messages of a batch cannot: send "
                    "it alone"
                )
        completed, layout = self._build(properties, target)
        if layout is not None:
            if len(target.layouts) >= MAX_KNOWN_LAYOUTS:
                target.layouts.clear()
            target.layouts[len(properties)] = layout
        return completed

    def _build(
        self, properties: bytes, target: SendTarget
    ) -> tuple[tuple[bytes, bytes, int, bool], PropertiesLayout | None]:
        check_properties(properties)
        find = properties.find  # This is three times as fast as `in`, which tries to read a number first.
        added = self._own if not properties or properties[-1] == 2 else self._own_after_open_end
        at = properties.rfind(_UNIQUE_KEY_MARK)
        if at == 0 or (at > 0 and properties[at - 1] == 2):
            start = at + len(_UNIQUE_KEY_MARK)
            end = find(b"\x02", start)
            key_end = end if end >= 0 else len(properties)
            unique_key = properties[start:key_end]
        else:
            start = key_end = 0
            unique_key = (find_property(properties, _UNIQUE_KEY) or b"") if at > 0 else b""
        has_own_key = bool(unique_key)
        if not has_own_key:
            start = key_end = 0
            unique_key = self._unique_keys.next(self._wall_ms()).encode()
            added = b"".join((added, _UNIQUE_KEY_MARK, unique_key, b"\x02"))
        size = len(properties) + len(added)
        if size > MAX_PROPERTIES_BYTES:
            raise MessageIllegal(
                f"the properties have {size} bytes with what the broker adds, the limit is {MAX_PROPERTIES_BYTES}"
            )
        tag_code = self._tag_code(properties) if find(_TAGS_MARK) >= 0 else 0
        head = target.topic_field + _pack_length(size)
        layout: PropertiesLayout | None = None
        if key_end:
            before, behind = properties[:start], properties[key_end:]
            layout = PropertiesLayout(before, behind, key_end, head, added, tag_code)
        return (head + properties + added, unique_key, tag_code, has_own_key), layout

    def split(self, body: bytes, target: SendTarget) -> list[tuple[int, bytes, bytes]]:
        """Return flag, body and properties of the messages of a batch.

        Raises `MessageIllegal`, also if their records together would be larger than a unit of the log. The lengths
        suffice to check that.
        """
        added = RECORD_HEAD_BYTES + len(target.topic_field) + len(self._own) + 2
        return split_batch(body, max(1, (MAX_UNIT_BYTES - len(body)) // max(1, added - MIN_MESSAGE_BYTES)))

    def batch(self, body: bytes, target: SendTarget) -> PreparedBatch:
        """Return the messages in a batch's body.

        Raises `MessageIllegal`, or a `BatchNeedsSlices` if they have to be prepared in slices.
        """
        if target.retry_group is not None:
            raise MessageIllegal(f"a batch cannot go to the retry topic {target.topic}: send its messages one by one")
        split = self.split(body, target)
        layout = target.layouts.get(len(split[0][2]))
        if layout is not None:
            before, behind, key_end, head, added, tag_code = layout
            key_start, properties_bytes = len(before), len(split[0][2])
            messages: list[MessageParts] = [
                (message_body, head + properties + added, flag, tag_code)
                for flag, message_body, properties in split
                if len(properties) == properties_bytes
                and properties.startswith(before)
                and properties.endswith(behind)
                and properties[key_start:key_end].isalnum()
            ]
            if len(messages) == len(split):
                return messages, True
        if len(split) > SLICE_MESSAGES:
            raise BatchNeedsSlices(f"{len(split)} messages of a batch are not prepared in one turn")
        return self.one_by_one(split, target)

    def one_by_one(self, split: Sequence[tuple[int, bytes, bytes]], target: SendTarget) -> PreparedBatch:
        """Return the messages of a batch, completed one by one. Raises `MessageIllegal`."""
        messages: list[MessageParts] = []
        with_own_keys = True
        for flag, message_body, properties in split:
            tail, _, tag_code, has_own_key = self.complete(properties, target)
            messages.append((message_body, tail, flag, tag_code))
            with_own_keys = with_own_keys and has_own_key
        return messages, with_own_keys

    def _tag_code(self, properties: bytes) -> int:
        """Return the `tag_code_of` these properties, which decides on every replica.

        Most messages have a tag seen before.
        """
        tag = find_property(properties, _TAGS)
        if not tag:
            return 0
        code = self._tag_codes.get(tag)
        if code is None:
            code = tag_code_of(properties)
            if len(self._tag_codes) >= MAX_KNOWN_TAGS:
                self._tag_codes.clear()
            self._tag_codes[tag] = code
        return code


def properties_of(tail: bytes, target: SendTarget) -> bytes:
    """Return the properties in a record's tail."""
    return tail[len(target.topic_field) + 2 :]


def unique_key_of(tail: bytes) -> bytes:
    """Return the unique key in a record's tail."""
    start = tail.rfind(_UNIQUE_KEY_MARK) + len(_UNIQUE_KEY_MARK)
    end = tail.find(b"\x02", start)
    return tail[start:] if end < 0 else tail[start:end]
