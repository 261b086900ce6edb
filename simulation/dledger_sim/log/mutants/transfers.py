"""Bugs of snapshot transfers: how much is sent, which parts are written, and which thread closes the file."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

from dledger.replica.snapshots.sending import SnapshotReceiver, SnapshotSender, _Transfer
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("modes")


def _tell_nobody(self: SnapshotReceiver, transfer: _Transfer, number: int, error: BaseException | None) -> None:
    _ = number
    if error is None:
        self._write_pending(transfer)
    else:
        self._finish_transfer(transfer, error)


CATALOGUE.add(
    "written-pieces-not-told",
    "the receiver of a snapshot reports the pieces that it has written, which makes room for more",
    (SnapshotReceiver, "_on_written", _tell_nobody),
)


def _install_what_is_written(self: SnapshotReceiver, transfer: _Transfer) -> None:
    if transfer.install is not None and not transfer.job.busy:
        transfer.pending_pieces = []
    _real_go_on(self, transfer)


_real_go_on = SnapshotReceiver._write_pending

CATALOGUE.add(
    "last-pieces-forgotten",
    "a snapshot is installed once all its pieces are written",
    (SnapshotReceiver, "_write_pending", _install_what_is_written),
)


def _close_at_once(self: SnapshotSender) -> None:
    closes, self._is_ended = not self._is_ended and not self._is_reading, True
    if closes:
        self._chunks.close()


CATALOGUE.add(
    "sent-file-closed-by-the-loop",
    "a worker closes the file of a snapshot that is no longer sent",
    (SnapshotSender, "stop", _close_at_once),
)
