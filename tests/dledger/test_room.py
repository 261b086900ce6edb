"""A start checks the disk: it reports too little space, and a file system above the watermark."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dledger_base.room import look_for_room

MIB = 1 << 20


@pytest.fixture
def free_of_1000_mib(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    free = int(request.param)
    found = SimpleNamespace(f_frsize=MIB, f_blocks=1000, f_bfree=free, f_bavail=free)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    return free


@pytest.mark.parametrize("free_of_1000_mib", [900, 251], indirect=True)
def test_enough_room_needs_no_word(tmp_path: Path, free_of_1000_mib: int) -> None:
    room = look_for_room(tmp_path / "not" / "there" / "yet", 200 * MIB, "a cluster")
    assert room == (free_of_1000_mib * MIB, 1000 * MIB, None, None)


@pytest.mark.parametrize("free_of_1000_mib", [150], indirect=True)
def test_a_file_system_above_the_watermark_is_told_with_both_numbers(tmp_path: Path, free_of_1000_mib: int) -> None:
    room = look_for_room(tmp_path, 100 * MIB, "a cluster")
    assert room.lack is None
    assert room.warning is not None
    assert f"has {free_of_1000_mib} MiB free of 1000 MiB, 85% are used" in room.warning


@pytest.mark.parametrize("free_of_1000_mib", [99], indirect=True)
def test_too_little_disk_space_is_reported_with_both_numbers_and_a_remedy(
    tmp_path: Path, free_of_1000_mib: int
) -> None:
    room = look_for_room(tmp_path, 100 * MIB, "a cluster")
    assert room.lack is not None
    assert f"has {free_of_1000_mib} MiB free of 1000 MiB, and a cluster takes about 100 MiB: make room" in room.lack
