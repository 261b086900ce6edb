"""`pytest -p tests.native.on_native`: every broker of a test, without Raft and disk, runs on the native part.

Its log is a file for as long as pulls are read. A panic fails the test: the twin would answer, and nobody would see it.
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
    """See `Log.with_open_file`; what `read_nowait`, which tests replace, does not give is not there."""
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
    # Else no pull would be read by the native part, and nobody would see it.
    assert native.pread_nowait(file.fileno(), 1, 0) == b"x", "this file system cannot tell what it has: set TMPDIR"
FakeEnvironment.native = native
FakeNode.with_open_file = with_open_file
