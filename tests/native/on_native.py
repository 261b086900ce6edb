"""`pytest -p tests.native.on_native`: every broker of a test, without Raft and disk, runs on the native part.

Its log is a file while pulls are read. A panic fails the test, since otherwise the twin would answer unnoticed.
"""

from __future__ import annotations

import importlib
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from dledger.errors import TrimmedError
from dledger.store.reader import OpenFile
from dledger_broker.testing import FakeEnvironment, FakeNode
from tests.native.conftest import no_panics

__all__ = ["no_panics"]

T = TypeVar("T")


def with_open_file(node: FakeNode, position: int, use: Callable[[OpenFile], T]) -> T | None:
    """Pass the segment at a position as an open file. See `Log.with_open_file`.

    Tests replace `read_nowait`. A position that it does not return counts as not in memory.
    """
    try:
        if node.read_nowait(position, 1) is None:
            return None
    except TrimmedError:
        return None
    starts = node.log.segment_starts
    number = bisect_right(starts, position)
    start, end = starts[number - 1], (*starts, node.log.end)[number]
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(node.log.data[start:end])
        return use(OpenFile(file.fileno(), start, end))


native = importlib.import_module("dledger_native")
with tempfile.TemporaryFile(buffering=0) as file:
    file.write(b"x")
    # Otherwise the native part would read no pull, and nobody would notice.
    assert native.pread_nowait(file.fileno(), 1, 0) == b"x", "this file system cannot tell what it has: set TMPDIR"
FakeEnvironment.native = native
FakeNode.with_open_file = with_open_file
