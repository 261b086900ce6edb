"""Bugs of class filters. A message that the filter's process could not judge must not be treated as judged."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_broker.features.class_filters.judging import ClassFilters, Verdicts
from dledger_remoting.errors import ServerError
from dledger_remoting.filters.subscriptions import ClassFilter
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("classes")


async def _treat_as_unwanted(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    try:
        return await _real_judge(self, wanted, count, pieces)
    except ServerError:
        return Verdicts(bytes(count))


_real_judge = ClassFilters.judge

CATALOGUE.add(
    "unjudged-left-out",
    "messages that a class filter has not judged are not passed over: a consumer asks again, and a pop does not "
    "acknowledge them",
    (ClassFilters, "judge", _treat_as_unwanted),
)


async def _treat_as_wanted(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    try:
        return await _real_judge(self, wanted, count, pieces)
    except ServerError:
        return Verdicts(b"\1" * count)


CATALOGUE.add(
    "unjudged-let-through",
    "a message that a class filter has not judged is shown to no consumer",
    (ClassFilters, "judge", _treat_as_wanted),
)


async def _shift_verdicts(self: ClassFilters, wanted: ClassFilter, count: int, pieces: Sequence[bytes]) -> Verdicts:
    verdicts = await _real_judge(self, wanted, count, pieces)
    matches = [verdicts.matches_text(b"") for _ in range(count)]
    return Verdicts(bytes([*matches[1:], False]))


CATALOGUE.add(
    "verdicts-moved-by-one",
    "a class filter's verdict on a message decides about that message",
    (ClassFilters, "judge", _shift_verdicts),
)
