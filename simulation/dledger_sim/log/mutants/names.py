"""Bugs of durable names: a directory is not synced, while others are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dledger.store.disk import Disk
from dledger.store.recovery import _Recoverer
from dledger.store.segments import DIRECTORY
from dledger.store.sync import SyncTicket
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules.disk import names_of_a_killed_process

CATALOGUE = Catalogue("log")
T = TypeVar("T")


class Forgetful:
    """Disk that never syncs one of its directories."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def sync_dir(self, path: str) -> None:
        if path != self._directory:
            self._disk.sync_dir(path)


def without(method: Callable[..., T], attribute: str, directory: str) -> Callable[..., T]:
    """Return the method without the syncs of one directory."""

    def forgetful(self: object, *arguments: object) -> T:
        disk = getattr(self, attribute)
        setattr(self, attribute, Forgetful(disk, directory))
        try:
            return method(self, *arguments)
        finally:
            setattr(self, attribute, disk)

    return forgetful


CATALOGUE.add(
    "log-directory-not-synced",
    "a sync that spans a roll covers the directory of the log, not only the directory of the index",
    (SyncTicket, "run", without(SyncTicket.run, "_disk", DIRECTORY)),
)
CATALOGUE.add(
    "recovered-names-not-synced",
    "a recovery makes the names of the files that it uses durable",
    (_Recoverer, "run", without(_Recoverer.run, "disk", DIRECTORY)),
    schedule=names_of_a_killed_process,
)
