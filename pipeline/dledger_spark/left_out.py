"""Count of the messages that a micro-batch of a stream left out, from the query's progress."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from .errors import SourceError
from .offsets import Offsets, from_json


class SourceProgress(Protocol):
    """The fields of Spark's progress of a source that `left_out_rows` needs."""

    startOffset: str | None  # noqa: N815 (Spark's name)
    endOffset: str | None  # noqa: N815 (Spark's name)
    numInputRows: int  # noqa: N815 (Spark's name)


class QueryProgress(Protocol):
    """The field of Spark's `StreamingQueryProgress` that `left_out_rows` needs."""

    @property
    def sources(self) -> Sequence[SourceProgress]: ...


def left_out_rows(progress: QueryProgress, source: int = 0) -> int:
    """Return the number of offsets of a micro-batch that gave no row, for the source of this number.

    With `badRecords=DROPMALFORMED` these are the messages that were dropped. Messages that the options `tags` and `sql`
    leave out count as well, and so do lost messages with `failOnDataLoss=false`. Raises `SourceError` if the source is
    another format.
    """
    source_progress = progress.sources[source]
    try:
        end: dict[str, Any] = json.loads(source_progress.endOffset or "null")
        # The first micro-batch has no start.
        start: dict[str, Any] | None = json.loads(source_progress.startOffset or "null")
        begins, ends = from_json(end["begins"] if start is None else start), from_json(end)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise SourceError(f"these are no offsets of format dledger: {source_progress.endOffset!r}") from error
    return _count_offsets(begins, ends) - source_progress.numInputRows


def _count_offsets(begins: Offsets, ends: Offsets) -> int:
    """Count the offsets of a micro-batch. Queues that are new, or of a topic made again, count from their start."""
    return sum(end - begin if (begin := begins.get(queue, 0)) <= end else end for queue, end in ends.items())
