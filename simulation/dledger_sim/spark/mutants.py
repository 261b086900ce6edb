"""Known bugs of the pipeline, each with the story that fails with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dledger_sim.log.mutants.catalogue import Mutant, Patch
from dledger_sim.spark import stories
from dledger_spark import queues, restarts, streaming, uncommon
from dledger_spark.identity import RowIdentities
from dledger_spark.occurrences import Occurrences
from dledger_spark.offsets import Queue
from dledger_spark.sending import RowSender
from dledger_spark.streaming import StreamReader


@dataclass(frozen=True, slots=True)
class PipelineMutant:
    """Known bug with its story."""

    name: str
    breaks: str
    patches: tuple[Patch, ...]
    story: Callable[[], None]

    def caught(self) -> str:
        """Run the story with the bug.

        Return the story's name and message, or an empty text if the story noticed nothing.
        """
        with Mutant(self.name, self.breaks, "", self.patches).applied():
            try:
                self.story()
            except AssertionError as told:
                return f"{self.story.__name__}: {told}"
        return ""


CATALOGUE: Final[dict[str, PipelineMutant]] = {}

_real_next = RowIdentities.next
_real_start_offset = StreamReader.start_offset


def _add(name: str, breaks: str, story: Callable[[], None], *patches: Patch) -> None:
    CATALOGUE[name] = PipelineMutant(name, breaks, patches, story)


def _begin_one_early(begins: Mapping[Queue, int], queue: Queue, end: int) -> int:
    return max(0, _real_start_offset(begins, queue, end) - 1)


def _begin_one_late(begins: Mapping[Queue, int], queue: Queue, end: int) -> int:
    begin = _real_start_offset(begins, queue, end)
    return min(begin + 1, end) if begin else begin


def _share_by_size(backlog: Mapping[Queue, int], maximum: int) -> dict[Queue, int]:
    total = sum(backlog.values())
    return {queue: size * maximum // total for queue, size in backlog.items()}


def _of_the_task(self: RowIdentities, *row: object) -> str:
    return _real_next(self, *row[:6])  # type: ignore[arg-type]


_add(
    "spark-available-now-waits-for-minimum",
    "a query that reads the available messages and ends waits for nothing",
    stories.a_query_that_ends_waits_for_no_minimum,
    (StreamReader, "reads_to_a_target", lambda _self: False),
)
_add(
    "spark-restart-repeats-the-last",
    "a restart repeats nothing",
    stories.each_offset_is_read_once,
    (StreamReader, "start_offset", staticmethod(_begin_one_early)),
)
_add(
    "spark-restart-skips-the-next",
    "a restart skips nothing",
    stories.each_offset_is_read_once,
    (StreamReader, "start_offset", staticmethod(_begin_one_late)),
)
_add(
    "spark-second-founding-read",
    "a checkpoint belongs to one broker group",
    stories.a_second_founding_is_refused,
    (restarts, "check_identities", lambda found, _expected, _reported: dict(found)),
)
_add(
    "spark-retention-unsaid",
    "a stream fails if messages are gone",
    stories.what_retention_took_is_told,
    (StreamReader, "report_loss", lambda _self, _what: None),
)
_add(
    "spark-small-queue-starves",
    "each queue with messages has a share in a micro-batch",
    stories.no_queue_waits_for_busier_ones,
    (streaming, "proportional_shares", _share_by_size),
)
_add(
    "spark-equal-rows-are-one",
    "equal rows of one task are all stored",
    stories.equal_rows_of_one_task_stay_apart,
    (Occurrences, "next", lambda _self, _key: 1),
)
_add(
    "spark-origin-ignored",
    "a row with an origin is the same row in every task",
    stories.a_row_is_the_same_in_whichever_task,
    (RowIdentities, "next", _of_the_task),
)
_add(
    "spark-forgotten-repetition-passes",
    "a repetition that is not remembered fails by name",
    stories.a_repetition_that_is_not_remembered_fails,
    (RowSender, "check_remembered", lambda _self, _result: None),
)
_add(
    "spark-rot-counts-as-bad",
    "rotten bytes are never dropped or null",
    stories.rot_is_no_bad_record,
    (uncommon, "has_crc", lambda _body, _crc: True),
)
_add(
    "spark-crc-not-looked-at",
    "a rotten record is read from another replica",
    stories.a_rotten_record_is_not_taken,
    (queues, "check_records", lambda *_records, **_options: None),
)
