"""Sync tickets that need only one fdatasync can be synced elsewhere. They end as on the flush thread."""

import errno
import os
from pathlib import Path

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, synced_log

from dledger.errors import StorageError
from dledger.store.disk import OsDisk
from dledger.store.log import INDEX_BATCH_ENTRIES
from dledger.testing.disk import SimDisk


@pytest.fixture
def model(tmp_path: Path) -> LoggedModel:
    return synced_log(OsDisk(str(tmp_path)), 1)


def test_a_sync_of_a_segment_needs_a_single_descriptor(model: LoggedModel, tmp_path: Path):
    model.append(b"second")
    ticket = model.begin_sync()
    assert ticket.descriptors is not None
    [descriptor] = ticket.descriptors
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "commitlog" / f"{0:020d}").stat())
    os.fdatasync(descriptor)
    ticket.finish(None)
    model.log.finish_sync(ticket)
    assert model.log.durable == model.log.last_index
    assert model.log.begin_sync() is None


@pytest.mark.parametrize("bodies", [[b""] * INDEX_BATCH_ENTRIES, [b"x" * 500] * (SEGMENT_BYTES // 500 + 1)])
def test_a_sync_with_index_units_or_over_a_segment_end_has_no_plain_descriptors(
    model: LoggedModel, bodies: list[bytes]
):
    for body in bodies:
        model.append(body)
    assert model.begin_sync().descriptors is None


def test_a_disk_that_is_not_the_systems_has_no_descriptors(sim_disk: SimDisk):
    model = synced_log(sim_disk, 1)
    model.append(b"second")
    assert model.begin_sync().descriptors is None


def test_a_sync_that_failed_elsewhere_ends_the_log(model: LoggedModel):
    """After a failed fdatasync, the pages in the cache may never become durable."""
    model.append(b"second")
    ticket = model.begin_sync()
    with pytest.raises(StorageError, match="syncing the log up to index 1 failed"):
        ticket.finish(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError, match="an earlier write or sync of the log failed"):
        model.log.begin_sync()


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error")])
def test_a_log_closed_during_a_sync_ticket_closes_its_files_with_the_ticket(model: LoggedModel, error):
    model.append(b"second")
    ticket = model.begin_sync()
    assert ticket.descriptors is not None
    [descriptor] = ticket.descriptors
    model.log.close()
    os.fstat(descriptor)
    try:
        ticket.finish(error)
    except StorageError:
        assert error is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
