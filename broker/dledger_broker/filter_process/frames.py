"""Frames between a node and the process of a class filter, through pipes. Numbers are big-endian.

| question | | answer | |
|---|---|---|---|
| u32 | bytes behind this field | u32 | bytes behind this field |
| u32 | number of records | u8 | 0 = judged, 1 = failed |
| | the records, back to back | | judged: for each record 1 if it matches, else 0; failed: why, in UTF-8 |

The process sends the first answer unasked, once the filter is loaded. It is empty, or says why the filter could not be
loaded.
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
