"""Routes of topics as name servers know them: the places of a topic's queues, in this group and in other groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dledger_remoting.route import TopicRouteData

Found: TypeAlias = Callable[[TopicRouteData | None], None]
"""Receives a route, which is empty if no name server has the topic. None means that the route is unknown at present."""


class TopicRoutes:
    """Finder of routes, by the function given to `attach`. Without it, this group is the only one of its cluster."""

    def __init__(self) -> None:
        self._find: Callable[[str, Found], None] | None = None

    def attach(self, find: Callable[[str, Found], None]) -> None:
        """Set the function that finds routes. `find(topic, found)` asks name servers and calls `found` once, within a
        second.
        """
        self._find = find

    def find(self, topic: str, found: Found) -> None:
        """Call `found` once with the route of a topic, at once or later on the event loop."""
        if self._find is None:
            found(TopicRouteData())
        else:
            self._find(topic, found)
