"""Bugs of filters in SQL92: a pull gets the messages that match, and goes on behind the last that was examined."""

from __future__ import annotations

from collections.abc import Iterable

from dledger_broker.features.pulling import requests
from dledger_broker.features.pulling.properties import choose
from dledger_broker.views.reading import GetResult
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.values import Incomparable
from dledger_remoting.properties import parse_properties
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")


def _take_null_for_true(self: SqlFilter, properties: bytes) -> bool:
    """Where messages are read. The judge asks `matches`, which stays right."""
    parsed = parse_properties(properties)
    try:
        return self._matches([parsed.get(name) for name in self.names]) is not False
    except Incomparable:
        return False


CATALOGUE.add(
    "null-lets-through",
    "a filter lets through a message of which it is true, not one of which that is unknown",
    (SqlFilter, "matches_text", _take_null_for_true),
)


def _go_on_behind_all(
    read: GetResult, pieces: Iterable[bytes], asked: int, wanted: SqlFilter, max_messages: int, max_bytes: int
) -> tuple[GetResult, list[bytes]]:
    result, chosen = choose(read, pieces, asked, wanted, max_messages, max_bytes)
    return result._replace(next_begin=read.next_begin), chosen


CATALOGUE.add(
    "left-out-is-passed-over",
    "a pull goes on at what it left out, not behind all that was read",
    (requests, "choose", _go_on_behind_all),
)
