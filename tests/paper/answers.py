"""Typed answers of a core."""

from collections.abc import Sequence
from typing import TypeVar

from dledger.core.messages import Message

T = TypeVar("T")


def only(kind: type[T], messages: Sequence[Message]) -> T:
    """Check that there is one message, of this kind, and return it."""
    (message,) = messages
    assert isinstance(message, kind), message
    return message
