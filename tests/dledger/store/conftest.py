"""Both disks, for tests that hold on either."""

import random
from pathlib import Path

import pytest
from store_model import LoggedModel, make_identity

from dledger.store.disk import Disk, OsDisk
from dledger.testing.disk import SimDisk


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return OsDisk(str(tmp_path)) if request.param == "os" else SimDisk(random.Random(7))


@pytest.fixture
def sim_disk() -> SimDisk:
    return SimDisk(random.Random(7))


@pytest.fixture
def model(disk: Disk) -> LoggedModel:
    make_identity(disk)
    return LoggedModel(disk)
