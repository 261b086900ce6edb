"""Messages between a node and the process of a class filter, in the form in which the filter sees them.

A configuration names the code of a filter as `module:function`. Frames go through pipes, their numbers are big-endian:

| question | | answer | |
|---|---|---|---|
| u32 | bytes behind this field | u32 | bytes behind this field |
| u32 | number of records | u8 | 0 = judged, 1 = failed |
| | the records, back to back | | judged: for each record 1 if it matches, else 0; failed: why, in UTF-8 |

The process sends the first answer unasked, once the filter is loaded. It is empty, or says why the filter could not be
loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from struct import Struct
from typing import Final, NamedTuple

from dledger_remoting.compression import decompress
from dledger_remoting.errors import BodyError
from dledger_remoting.properties import KEYS, TAGS, parse_properties
from dledger_remoting.record import MessageRecord


class FilteredMessage(NamedTuple):
    """A stored message. Times are in ms since 1970.

    `body` is decompressed, or the stored bytes if they cannot be decompressed. `properties` includes the properties of
    the protocol.
    """

    topic: str
    body: bytes
    properties: Mapping[str, str]
    tags: str | None
    keys: str | None
    queue_id: int
    queue_offset: int
    born_timestamp: int
    store_timestamp: int
    reconsume_times: int


def shown_message(record: MessageRecord) -> FilteredMessage:
    """Return the message in a record.

    Everybody who may send to a topic can store a body that does not decompress. The filter then sees the stored bytes
    and decides.
    """
    properties = parse_properties(record.properties)
    try:
        body = decompress(record.body, record.sys_flag)
    except BodyError:
        body = record.body
    return FilteredMessage(
        record.topic,
        body,
        properties,
        properties.get(TAGS),
        properties.get(KEYS),
        record.queue_id,
        record.queue_offset,
        record.born_timestamp,
        record.store_timestamp,
        record.reconsume_times,
    )


SIZE: Final = Struct(">I")
_QUESTION: Final = Struct(">II")
_ANSWER: Final = Struct(">IB")
JUDGED: Final = 0
FAILED: Final = 1
MAX_ANSWER_BYTES: Final = 64 << 10
"""Maximum size of an answer in bytes. The node has to hold an answer, so a process that announces a larger answer is
broken.
"""


def question(count: int, pieces: Sequence[bytes]) -> bytes:
    """Return the bytes of a question about `count` records."""
    return b"".join((_QUESTION.pack(SIZE.size + sum(map(len, pieces)), count), *pieces))


def answer(outcome: int, content: bytes) -> bytes:
    """Return the bytes of an answer."""
    return _ANSWER.pack(1 + len(content), outcome) + content


def answer_size(received: bytes | bytearray) -> int | None:
    """Return the size of the answer that begins with `received`, including its size field. None while that field is
    incomplete.
    """
    return None if len(received) < SIZE.size else SIZE.size + int(SIZE.unpack_from(received)[0])


def split_target(target: str) -> tuple[str, str]:
    """Return module and function of `module:function`. Raises ValueError."""
    module, separator, function = target.partition(":")
    if not separator or not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(f"{target!r} names no code, expected 'module:function'")
    return module, function


def load_target(target: str) -> Callable[[FilteredMessage], object]:
    """Return the function of a target.

    Raises ValueError for a malformed target, and the errors of importing its module. Raises AttributeError if the
    module lacks the name, and TypeError if the object cannot be called.
    """
    module, function = split_target(target)
    found = getattr(import_module(module), function)
    if not callable(found):
        raise TypeError(f"{target} is no function")
    loaded: Callable[[FilteredMessage], object] = found
    return loaded
