"""Channels of the clients that are connected to this node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dledger_broker.clients.tables import ClientChannel


class Channels:
    """All of them: `opened` is what holds them, whoever opens and closes them."""

    def __init__(self, opened: Iterable[ClientChannel] = ()) -> None:
        self._opened = opened

    def __iter__(self) -> Iterator[ClientChannel]:
        """Those that are open now."""
        return iter(self._opened)
