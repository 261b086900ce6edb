"""Class filter of simulated nodes: its code, and a worker in place of its process. The worker dies now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final

from dledger_broker.features.class_filters.worker import FilterFailedError
from dledger_broker.filter_process.messages import FilteredMessage, shown_message
from dledger_remoting.record import iter_records

CLASS_NAME: Final = "sim.Red"
TARGET: Final = f"{__name__}:is_red"
RED: Final = "red"
DIES_SHARE: Final = 0.25
"""Share of calls in which the process dies before it has answered."""


def is_red(message: FilteredMessage) -> bool:
    """Return whether the class lets a message through."""
    return message.tags == RED


class MortalWorker:
    """`FilterWorker` that judges in the simulator's own process."""

    def __init__(self, random: Random, counts: Counter[str]) -> None:
        self._random = random
        self._counts = counts
        self.ended = 0

    def load(self) -> None:
        """Do nothing: the class is already loaded."""

    def judge(self, count: int, pieces: Sequence[bytes]) -> bytes:
        """Judge parts of records, or die."""
        if self._random.random() < DIES_SHARE:
            self.ended += 1
            self._counts["class filter died"] += 1
            raise FilterFailedError("its process ended by signal 9")
        verdicts = bytes(is_red(shown_message(record)) for record in iter_records(b"".join(pieces)))
        self._counts["judged by a class"] += count
        return verdicts

    def close(self) -> None:
        """Do nothing: there is no process to end."""
