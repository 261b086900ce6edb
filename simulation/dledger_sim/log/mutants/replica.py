"""Bugs of the driver: answers, reads, and the opening of a directory."""

from __future__ import annotations

from collections.abc import Callable

from dledger.config import ReplicaConfig
from dledger.replica.applying.reads import ReadWaiters
from dledger.replica.start.opening import LOG_DIRECTORIES, STARTED, Opened, open_directory
from dledger.replica.upkeep.repair import Repairer
from dledger.replica.upkeep.upkeep import Housekeeping
from dledger.replica.writing.leading import Leading
from dledger.replica.writing.proposer import SealedEntry
from dledger.store.disk import Disk
from dledger_sim.log import group
from dledger_sim.log.machine import Pending
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules import core as core_schedules
from dledger_sim.log.schedules import group as group_schedules

CATALOGUE = Catalogue("log")


def _serve_when_confirmed(self: ReadWaiters, number: int, index: int) -> None:
    _ = index
    _real_confirmed(self, number, -1)


_real_confirmed = ReadWaiters.confirmed

CATALOGUE.add(
    "read-before-apply",
    "a read waits until the entries that were committed before it are applied",
    (ReadWaiters, "confirmed", _serve_when_confirmed),
    schedule=core_schedules.read_waits_for_apply,
)


def _answer_when_proposed(self: Leading, entry: SealedEntry) -> None:
    _real_propose(self, entry)
    for context in entry.contexts:
        if isinstance(context, Pending):
            context.resolve("ok", context.position)


_real_propose = Leading._propose  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "answer-before-apply",
    "an append is answered once it is applied",
    (Leading, "_propose", _answer_when_proposed),
)


def _forgive_lost_files(
    disk: Disk,
    config: ReplicaConfig,
    mint: Callable[[], str],
    *,
    boot_id: str = "",
    bootstrap: bool = False,
    name: str = "",
    engine: str,
) -> Opened:
    if not any(disk.exists(directory) for directory in LOG_DIRECTORIES):
        disk.unlink(STARTED)
    return open_directory(disk, config, mint, boot_id=boot_id, bootstrap=bootstrap, name=name, engine=engine)


CATALOGUE.add(
    "lost-files-forgiven",
    "a directory that lost its log counts as another member",
    (group, "open_directory", _forgive_lost_files),
    schedule=group_schedules.lost_files,
)


def _save_what_is_not_durable(self: Housekeeping, commit_index: int) -> None:
    if commit_index > self._saved_commit:
        self._saved_commit = commit_index
        self._store.save_commit(commit_index)


CATALOGUE.add(
    "commit-saved-before-sync",
    "entries lost above the durable log are a torn end, not damage",
    (Housekeeping, "_save_commit", _save_what_is_not_durable),
    schedule=group_schedules.power_loss_on_a_slow_disk,
)


def _ask_nobody(self: Repairer) -> None:
    _ = self


CATALOGUE.add(
    "rot-not-healed",
    "rotten or lost bytes are healed with a peer's bytes",
    (Repairer, "_begin", _ask_nobody),
    schedule=group_schedules.lost_segment,
)
