"""Answers of a core, with their types."""

from collections.abc import Sequence
from typing import TypeVar

from dledger.core.messages import Message

T = TypeVar("T")


def only(kind: type[T], messages: Sequence[Message]) -> T:
    """The one message there is, which is of this kind."""
    (message,) = messages
    assert isinstance(message, kind), message
    return message
