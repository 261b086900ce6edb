"""The fixture of `broker_group`."""

from broker_group import group

__all__ = ["group"]
