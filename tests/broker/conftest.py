"""The fixtures of `broker_group` and `served_broker`."""

from broker_group import group
from served_broker import broker, client, make_broker

__all__ = ["broker", "client", "group", "make_broker"]
