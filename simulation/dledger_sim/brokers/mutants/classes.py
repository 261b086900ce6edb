"""Bugs of class filters: what a process that died has not judged is neither wanted nor left out."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_broker.features.class_filters.judging import ClassFilters, Verdicts
from dledger_remoting.errors import ServerError
from dledger_remoting.filters.classes import ClassFilter
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("classes")


async def _nothing_matches(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    try:
        return await _real_judge(self, wanted, count, pieces)
    except ServerError:
        return Verdicts(bytes(count))


_real_judge = ClassFilters.judge

CATALOGUE.add(
    "unjudged-left-out",
    "what a class has not judged is not passed over: a consumer asks again, and a pop acknowledges nothing of it",
    (ClassFilters, "judge", _nothing_matches),
)


async def _all_match(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    try:
        return await _real_judge(self, wanted, count, pieces)
    except ServerError:
        return Verdicts(b"\1" * count)


CATALOGUE.add(
    "unjudged-let-through",
    "what a class has not judged is shown to nobody",
    (ClassFilters, "judge", _all_match),
)


async def _of_the_next_one(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    said = await _real_judge(self, wanted, count, pieces)
    matches = [said.matches_text(b"") for _ in range(count)]
    return Verdicts(bytes([*matches[1:], False]))


CATALOGUE.add(
    "verdicts-moved-by-one",
    "what a class said of a message decides about that one",
    (ClassFilters, "judge", _of_the_next_one),
)
