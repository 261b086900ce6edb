"""Bugs of snapshots on their way: who sends how much of one, who writes what of it, and who closes its file."""

# ruff: noqa: SLF001 - what is patched is what is private
from __future__ import annotations

from dledger.replica.transfer import SnapshotReceiver, SnapshotSender, _Transfer
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("modes")


def _tell_nobody(self: SnapshotReceiver, transfer: _Transfer, number: int, error: BaseException | None) -> None:
    _ = number
    if error is None:
        self._go_on(transfer)
    else:
        self._ended(transfer, error)


CATALOGUE.add(
    "written-pieces-not-told",
    "who receives a snapshot tells what it has written, which makes room for more",
    (SnapshotReceiver, "_written", _tell_nobody),
)


def _install_what_is_written(self: SnapshotReceiver, transfer: _Transfer) -> None:
    if transfer.install is not None and not transfer.job.busy:
        transfer.waiting = []
    _real_go_on(self, transfer)


_real_go_on = SnapshotReceiver._go_on

CATALOGUE.add(
    "last-pieces-forgotten",
    "a snapshot is installed once all its pieces are written",
    (SnapshotReceiver, "_go_on", _install_what_is_written),
)


def _close_at_once(self: SnapshotSender) -> None:
    closes, self._ended = not self._ended and not self._reading, True
    if closes:
        self._chunks.close()


CATALOGUE.add(
    "sent-file-closed-by-the-loop",
    "a worker closes the file of a snapshot that is sent no further",
    (SnapshotSender, "stop", _close_at_once),
)
