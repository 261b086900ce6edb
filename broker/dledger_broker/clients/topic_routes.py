"""Routes of topics: where else than in this group their queues are, which name servers know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dledger_remoting.route import TopicRouteData

Found: TypeAlias = Callable[[TopicRouteData | None], None]
"""Called with a route, which is empty if no name server has one; None if that cannot be told now."""


class TopicRoutes:
    """Finds routes by asking whom `attach` names; a node without that is its cluster's only group."""

    def __init__(self) -> None:
        self._find: Callable[[str, Found], None] | None = None

    def attach(self, find: Callable[[str, Found], None]) -> None:
        """`find(topic, found)` asks name servers, and calls `found` once, within a second."""
        self._find = find

    def find(self, topic: str, found: Found) -> None:
        """Call `found` once with the route of a topic, at once or later on the event loop."""
        if self._find is None:
            found(TopicRouteData())
        else:
            self._find(topic, found)
