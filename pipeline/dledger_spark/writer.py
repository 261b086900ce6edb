"""Writes: every row becomes a message, and a task ends only when a majority has stored each of them.

What is acknowledged stays: a job that is aborted leaves the rows of its finished tasks. Repeating it with the same
identity (the query's and micro-batch's own, or `jobId`) within the broker's window stores none of them twice; see
`identity`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from .errors import OptionError, SourceError
from .options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """How many rows one task has stored."""

    rows: int


class _TopicWriter:
    """What both writers share; it is pickled to every task."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        from .sending import check_columns

        if overwrite:
            raise OptionError("mode", "overwrite", 'messages are only ever added: use mode("append")')
        check_columns({field.name: field.dataType.simpleString() for field in schema}, options.topic)
        self.options = options

    def send(self, run: str | None, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send a task's rows. Raises what made one fail; `client` errors say whether it may have been stored."""
        from .sending import RowSender

        return Written(RowSender(self.options, run, _task().partitionId()).send(batches))

    def aborted(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what stays."""
        stored = sum(message.rows for message in messages if isinstance(message, Written))
        _logger.warning("event=write_aborted rows_stored_by_finished_tasks=%d", stored)


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a frame once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.job_id is None:
            _logger.warning(
                "event=at_least_once reason='no jobId: a task that runs again stores its rows again' topic=%s",
                options.topic,
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task."""
        return self.send(None if self.options.job_id is None else f"job {self.options.job_id}", iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good."""
        self.aborted(messages)


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes micro-batch after micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task of one micro-batch."""
        task = _task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise SourceError(f"the task has no {_QUERY_ID} and {_BATCH_ID}: rows have no identity without them")
        return self.send(f"query {query} batch {batch}", iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's)
        """A task failed for good."""
        self.aborted(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SourceError("a write runs in a task of Spark only")
    return task
