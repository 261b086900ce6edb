"""Queries: single messages by key and by physical offset."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.queries.requests import QueryRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> QueryRequests:
    return QueryRequests(context.machine, context.requests, context.access)


FEATURE: Final = Feature(name="queries", build=_build)
