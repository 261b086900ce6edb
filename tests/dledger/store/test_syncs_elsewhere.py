"""Tickets whose file somebody else syncs, if one fdatasync is all of it; they end as on the flush thread."""

import errno
import os
from pathlib import Path

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, make_identity

from dledger.errors import StorageError
from dledger.store.disk import OsDisk
from dledger.store.log import INDEX_BATCH_ENTRIES
from dledger.store.sync import SyncTicket
from dledger.testing.disk import SimDisk


@pytest.fixture
def model(tmp_path: Path) -> LoggedModel:
    disk = OsDisk(str(tmp_path))
    make_identity(disk)
    model = LoggedModel(disk)
    model.append(b"first")
    model.sync()
    return model


def begin(model: LoggedModel) -> SyncTicket:
    ticket = model.log.begin_sync()
    assert ticket is not None
    return ticket


def test_a_sync_of_one_segment_is_one_descriptor(model: LoggedModel, tmp_path: Path):
    model.append(b"second")
    ticket = begin(model)
    assert ticket.descriptors is not None
    [descriptor] = ticket.descriptors
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "commitlog" / f"{0:020d}").stat())
    os.fdatasync(descriptor)
    ticket.ended(None)
    model.log.finish_sync(ticket)
    assert model.log.durable == model.log.last_index
    assert model.log.begin_sync() is None


def test_index_units_are_more_than_a_descriptor(model: LoggedModel):
    for _ in range(INDEX_BATCH_ENTRIES):
        model.append(b"")
    assert begin(model).descriptors is None


def test_a_sync_that_spans_a_roll_is_more_than_a_descriptor(model: LoggedModel):
    while model.log.end_position <= SEGMENT_BYTES:
        model.append(b"x" * 500)
    assert begin(model).descriptors is None


def test_a_disk_that_is_not_the_systems_has_no_descriptors():
    disk = SimDisk()
    make_identity(disk)
    model = LoggedModel(disk)
    model.append(b"first")
    model.sync()
    model.append(b"second")
    assert begin(model).descriptors is None


def test_a_sync_that_failed_elsewhere_ends_the_log(model: LoggedModel):
    """What the page cache shows after a failed fdatasync may never become durable."""
    model.append(b"second")
    ticket = begin(model)
    with pytest.raises(StorageError, match="syncing the log up to index 1 failed"):
        ticket.ended(OSError(errno.EIO, os.strerror(errno.EIO)))
    with pytest.raises(StorageError, match="an earlier write or sync of the log failed"):
        model.log.begin_sync()


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error")])
def test_a_log_that_is_closed_while_a_ticket_runs_elsewhere_closes_its_files_with_it(model: LoggedModel, error):
    model.append(b"second")
    ticket = begin(model)
    assert ticket.descriptors is not None
    [descriptor] = ticket.descriptors
    model.log.close()
    os.fstat(descriptor)
    try:
        ticket.ended(error)
    except StorageError:
        assert error is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
