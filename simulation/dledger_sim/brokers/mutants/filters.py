"""Bugs of filters in SQL92. A pull must get the matching messages, and continue behind the last examined message."""

from __future__ import annotations

from collections.abc import Iterable

from dledger_broker.features.pulling import requests
from dledger_broker.features.pulling.properties import Matcher, choose
from dledger_broker.views.reading import GetResult
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.values import Incomparable
from dledger_remoting.properties import parse_properties
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")


def _take_null_for_true(self: SqlFilter, properties: bytes) -> bool:
    """Return whether the expression is not false.

    Pulls use this method; the judge uses `matches`, which stays right.
    """
    parsed = parse_properties(properties)
    try:
        return self._matches([parsed.get(name) for name in self.names]) is not False
    except Incomparable:
        return False


CATALOGUE.add(
    "null-lets-through",
    "a filter accepts a message only if its expression is true, not if the result is unknown",
    (SqlFilter, "matches_text", _take_null_for_true),
)


def _go_on_behind_all(
    read: GetResult, pieces: Iterable[bytes], asked: int, wanted: SqlFilter, max_messages: int, max_bytes: int
) -> tuple[GetResult, list[bytes]]:
    result, chosen = choose(read, pieces, asked, wanted, max_messages, max_bytes)
    return result._replace(next_begin=read.next_begin), chosen


CATALOGUE.add(
    "left-out-is-passed-over",
    "a pull goes on at the messages that it left out, not behind all messages that were read",
    (requests, "choose", _go_on_behind_all),
)


class _OneBehind:
    """Matcher that gives each record the result of the previous record.

    The first record gets the result of no properties.
    """

    def __init__(self, wanted: Matcher) -> None:
        self._wanted = wanted
        self._before = b""

    def matches_text(self, properties: bytes) -> bool:
        """Return the filter's result for the previous record."""
        before, self._before = self._before, properties
        return self._wanted.matches_text(before)


def _ask_of_the_one_in_front(
    read: GetResult, pieces: Iterable[bytes], asked: int, wanted: Matcher, max_messages: int, max_bytes: int
) -> tuple[GetResult, list[bytes]]:
    asks_sql = isinstance(wanted, SqlFilter)
    return choose(read, pieces, asked, _OneBehind(wanted) if asks_sql else wanted, max_messages, max_bytes)


CATALOGUE.add(
    "properties-of-the-one-in-front",
    "a filter looks at a message's own properties",
    (requests, "choose", _ask_of_the_one_in_front),
)
