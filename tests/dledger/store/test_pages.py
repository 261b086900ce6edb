"""Writing an entry never reads the disk, since the event loop would wait for the read."""

import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_model import LoggedModel, make_identity

from dledger.store.disk import OsDisk
from dledger.store.pages import PAGE_BYTES, PageWriter
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from tests.dledger.page_cache import evict, read_from_disk

SEGMENT_BYTES = 1 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="no counters of a thread's reads")
def test_entries_are_written_into_pages_that_are_not_cached_without_reading_them(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    make_identity(disk, SEGMENT_BYTES)
    model = LoggedModel(disk, SEGMENT_BYTES)
    segment = tmp_path / segment_path(0)
    model.append(bytes(100))
    with segment.open("r+b") as file:
        file.seek(model.log.end_position)
        file.write(bytes(SEGMENT_BYTES - file.tell()))
    before = read_from_disk()
    for size in (100, 5000, 300, 4096, 90_000, 7):
        evict(segment)
        model.append(bytes(size))
    assert read_from_disk() == before
    evict(segment)
    with segment.open("r+b") as file:
        os.pwrite(file.fileno(), b"x", SEGMENT_BYTES - PAGE_BYTES + 100)
    if read_from_disk() == before:
        pytest.skip("this file system reads no page before a part of it is written")
    model.check()


@given(st.lists(st.integers(1, 3 * PAGE_BYTES), min_size=1), st.integers(0, PAGE_BYTES), st.randoms())
def test_a_file_holds_the_written_bytes_and_then_only_zeros(sizes: list[int], spare: int, rng: random.Random) -> None:
    file = SimDisk(random.Random(1)).open("f", create=True)
    first = rng.choice([0, 0, 17])
    written = rng.randbytes(first)
    file.pwrite(written, 0)
    pages, reserved = PageWriter(), first + sum(sizes) + spare
    for size in sizes:
        data = rng.randbytes(size)
        if rng.random() < 0.2:
            pages.forget()
        pages.write(file, data, len(written), reserved)
        written += data
        content = file.pread(file.size(), 0)
        assert len(content) <= reserved
        assert content == written.ljust(len(content), b"\0")
