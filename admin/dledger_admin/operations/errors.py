"""Error of an operation that cannot be carried out, beside the errors of the client."""

from __future__ import annotations


class OperationError(Exception):
    """An operation that cannot be carried out. `text` names the thing, the found and the expected value.

    `remedy` says which command helps, for people at a terminal; it may be empty.
    """

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(f"{text}: {remedy}" if remedy else text)
        self.text = text
        self.remedy = remedy


class MissingError(OperationError):
    """There is nothing with a name, a key or an id."""
