"""Files that a process reads again while it runs: secrets, keys and certificates."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from dledger_base.errors import ConfigError

ReadT = TypeVar("ReadT")


class Rereading(Generic[ReadT]):
    """Reader of files that may be unusable for a while, for example while somebody replaces them.

    `read` reads them, and raises `ConfigError`. That is logged once for each text, as `event` with its consequence.
    """

    def __init__(self, read: Callable[[], ReadT], logger: logging.Logger, event: str, consequence: str) -> None:
        self._read = read
        self._logger = logger
        self._event = event
        self._consequence = consequence
        self._reported_error = ""

    def again(self) -> ReadT | None:
        """Read the files. Returns None, so that the former content stays in use, if they cannot be used."""
        try:
            content = self._read()
        except ConfigError as error:
            if str(error) != self._reported_error:
                self._reported_error = str(error)
                self._logger.warning(
                    "event=%s reason=%r consequence=%r", self._event, self._reported_error, self._consequence
                )
            return None
        self._reported_error = ""
        return content
