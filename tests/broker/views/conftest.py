"""The fixture of `broker_in_memory`."""

from broker_in_memory import broker

__all__ = ["broker"]
