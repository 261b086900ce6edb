"""Open files of the log, given to who reads them with the system's own calls."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NoReturn

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, make_identity

from dledger.store.damage import CorruptRange
from dledger.store.disk import OsDisk
from dledger.store.reader import OpenFile
from dledger.store.segments import Segment
from dledger.testing.disk import SimDisk


@pytest.fixture
def model(tmp_path: Path) -> LoggedModel:
    """A log of several segments on a real disk."""
    disk = OsDisk(str(tmp_path))
    make_identity(disk)
    model = LoggedModel(disk)
    model.fill(random.Random(7), 60)
    model.sync()
    return model


def test_it_is_the_file_that_has_the_position(model: LoggedModel) -> None:
    for meta, data in model.entries:
        model.log.read(meta.position, 1)  # opens it

        def read(file: OpenFile, start: int = meta.position, size: int = meta.size) -> bytes:
            assert file.start == start - start % SEGMENT_BYTES
            assert file.end == min(file.start + SEGMENT_BYTES, model.log.end_position)
            return os.pread(file.descriptor, size, start - file.start)

        assert model.log.with_open_file(meta.position, read) == data


def test_there_is_none_outside_of_the_log(model: LoggedModel) -> None:
    model.snapshot(SEGMENT_BYTES)
    model.trim(SEGMENT_BYTES)
    for position in (-1, 0, SEGMENT_BYTES - 1, model.log.end_position, 2**62):
        assert model.log.with_open_file(position, lambda _: pytest.fail("it is not there")) is None


def test_there_is_none_of_a_segment_that_nobody_has_opened(model: LoggedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "acquire_open", lambda _: None)
    assert model.log.with_open_file(0, lambda _: pytest.fail("it is not open")) is None


def test_there_is_none_where_the_log_is_damaged_for_who_reads_must_not_see_that(model: LoggedModel) -> None:
    model.log.read(0, 1)
    model.log._damage.add(CorruptRange(10, 20, 0, 1))
    assert model.log.with_open_file(0, lambda _: pytest.fail("it may be damaged")) is None


def test_there_is_none_on_a_disk_without_descriptors() -> None:
    disk = SimDisk()
    make_identity(disk)
    model = LoggedModel(disk)
    model.append(b"entry")
    assert model.log.with_open_file(0, lambda _: pytest.fail("it has no descriptor")) is None


def test_it_is_kept_open_for_as_long_as_it_is_read(model: LoggedModel) -> None:
    def broken(_: OpenFile) -> NoReturn:
        assert segment.held
        raise ZeroDivisionError

    model.log.read(0, 1)
    segment = model.log._table.containing(0)
    assert model.log.with_open_file(0, lambda _: segment.held)
    with pytest.raises(ZeroDivisionError):
        model.log.with_open_file(0, broken)
    assert not segment.held
