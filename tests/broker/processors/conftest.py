"""The fixtures of `served_broker`."""

from served_broker import broker, client, make_broker

__all__ = ["broker", "client", "make_broker"]
