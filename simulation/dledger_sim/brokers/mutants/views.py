"""Bugs of readers of files that are derived from the log. Only scenario `views` has such files rot."""

from __future__ import annotations

from dledger_broker.views import keyfile, timefile, unitfiles, unitreader
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.mending import QueueMender
from dledger_broker.views.queueview import QueueView
from dledger_sim.brokers.schedules import requests
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("views")


def _whole(_units: bytes, _seed: int, _offset: int) -> bool:
    return True


CATALOGUE.add(
    "units-not-checked",
    "a rotten unit is neither sent nor skipped",
    (unitreader, "are_whole", _whole),
    (unitfiles, "are_whole", _whole),
)


def _not_found(self: ConsumeQueues, view: QueueView, offset: int, error: Exception) -> None:
    _ = self, view, offset, error


CATALOGUE.add(
    "damage-not-mended",
    "a damaged queue is repaired while its node runs",
    (ConsumeQueues, "found_damage", _not_found),
)


async def _mended_without_log(self: QueueMender, gaps: list[object], behind: int) -> None:
    _ = self, gaps, behind


CATALOGUE.add(
    "mended-without-log",
    "lost parts of a queue are written anew before the queue is read again",
    (QueueMender, "_fill", _mended_without_log),
)

CATALOGUE.add(
    "row-not-checked",
    "a rotten row of the time index is not believed",
    (timefile, "_IS_BAD", "0"),
)


def _any_file_will_do(_file: timefile.TimeFile) -> None:
    """Accept a lost or shortened file."""


CATALOGUE.add(
    "lost-index-not-noticed",
    "a time index whose file is lost or shortened is rebuilt while its node runs",
    (timefile.TimeFile, "_require_whole", _any_file_will_do),
)


def _no_sum(_data: bytes, _value: int = 0) -> int:
    return 0


CATALOGUE.add(
    "index-not-checked",
    "a rotten key index hides no key",
    (keyfile, "crc32", _no_sum),
    schedule=requests.index_that_has_rotted,
)
