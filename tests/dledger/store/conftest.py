"""Both disks, for tests that hold on either."""

import random
from pathlib import Path

import pytest
from store_model import LoggedModel, make_identity, synced_log

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


@pytest.fixture
def synced(disk: Disk) -> LoggedModel:
    return synced_log(disk)


@pytest.fixture
def synced_sim(sim_disk: SimDisk) -> LoggedModel:
    return synced_log(sim_disk)
