"""Connections of every server are closed after a silence, and need no client for it."""

from types import SimpleNamespace
from unittest.mock import Mock

from dledger_base.accepted_connection import AcceptedConnection


class Silent(AcceptedConnection):
    """Connection whose client has gone without a word."""

    address = SimpleNamespace(ip="192.0.2.1")

    def _enter(self, peer: object) -> bool:
        return peer is not None

    def update_reading(self) -> None:
        """Do nothing."""


async def test_a_connection_that_stays_open_after_its_silence_is_closed_without_its_client() -> None:
    """A client that has gone never reads what waits for it, so a close that waits for it never ends."""
    host, transport = Mock(), Mock()
    host.bounds.limits = Mock(unread_bytes=1, slow_reader_timeout_ms=1)
    host.bounds.telling.untold.return_value = 0
    connection = Silent(host)
    connection.connection_made(transport)
    connection.end_silence(1_000)
    transport.close.assert_called_once()
    transport.abort.assert_not_called()
    connection.end_silence(1_000)
    transport.abort.assert_called_once()
    host.limit_counters.count_silence.assert_called_once()
    connection.connection_lost(None)
