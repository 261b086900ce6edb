"""What several tests of a name server take."""

import os

import pytest
from served_names import SlowDisk


@pytest.fixture
async def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk
