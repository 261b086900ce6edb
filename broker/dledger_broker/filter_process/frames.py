"""Frames between a node and a process of a class filter, through pipes; numbers are big-endian.

| question | | answer | |
|---|---|---|---|
| u32 | bytes behind this field | u32 | bytes behind this field |
| u32 | number of records | u8 | 0 = judged, 1 = failed |
| | the records, back to back | | judged: for each record 1 if it matches, else 0; failed: why, in UTF-8 |

The first answer comes by itself once the filter is loaded, and is empty, or says why it could not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

SIZE: Final = Struct(">I")
_QUESTION: Final = Struct(">II")
_ANSWER: Final = Struct(">IB")
JUDGED: Final = 0
FAILED: Final = 1
MAX_ANSWER_BYTES: Final = 64 << 10
"""A process that announces more has lost its mind: the node would have to hold it."""


def question(count: int, pieces: Sequence[bytes]) -> bytes:
    """The bytes of a question about `count` records."""
    return b"".join((_QUESTION.pack(SIZE.size + sum(map(len, pieces)), count), *pieces))


def answer(outcome: int, content: bytes) -> bytes:
    """The bytes of an answer."""
    return _ANSWER.pack(1 + len(content), outcome) + content


def answer_size(received: bytes | bytearray) -> int | None:
    """The size of the answer that begins so, with its size field; None as long as that is not complete."""
    return None if len(received) < SIZE.size else SIZE.size + int(SIZE.unpack_from(received)[0])
