"""Writes: every row becomes a message, and a task ends only when a majority has stored each of them.

Acknowledged rows stay: a job that is aborted leaves the rows of its finished tasks. A repetition with the same identity
stores none of them twice within the broker's window (`identity`). The identity is the query's and micro-batch's own, or
`jobId`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from .errors import OptionError, SourceError
from .identity import Spans, overlapping
from .options import WriteOptions
from .schema import SOURCE_TOPIC

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_logger = logging.getLogger(__name__)

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """Result of one task: the number of rows, and the offsets that they came from.

    `not_remembered` counts rows that a repetition would store again, `taken_for_others` rows that were perhaps not
    stored.
    """

    rows: int
    spans: Spans
    not_remembered: int = 0
    taken_for_others: int = 0


class _TopicWriter:
    """Base of both writers, which is pickled to every task."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool, *, has_identity: bool) -> None:
        from .sending import check_columns
        from .windows import within_window

        if overwrite:
            raise OptionError("mode", "overwrite", 'messages are only ever added: use mode("append")')
        check_columns({field.name: field.dataType.simpleString() for field in schema}, options.topic)
        self.options = within_window(options, has_identity=has_identity)

    def send(self, run: str | None, batches: Iterator[pa.RecordBatch]) -> Written:
        """Send a task's rows. Raises what made one fail; `client` errors say whether it may have been stored."""
        from .sending import RowSender

        task = _current_task()
        sender = RowSender(self.options, run, task.partitionId(), task.attemptNumber())
        rows = sender.send(batches)
        return Written(rows, sender.spans, sender.not_remembered, sender.taken_for_others)

    def committed(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many rows are not remembered, and where brokers may have taken equal rows for one."""
        results = [message for message in messages if isinstance(message, Written)]
        not_remembered = sum(result.not_remembered for result in results)
        if not_remembered:
            _logger.warning(
                "event=rows_not_remembered rows=%d topic=%s consequence='a repetition of this write stores them again; "
                "raise max_idempotent_keys of the brokers, or write more slowly'",
                not_remembered,
                self.options.topic,
            )
        taken_for_others = sum(result.taken_for_others for result in results)
        queue = overlapping(result.spans for result in results) if taken_for_others else None
        if queue is not None:
            _logger.warning(
                "event=rows_of_one_offset_in_several_tasks rows=%d topic=%s broker_group=%s queue=%d consequence='"
                "unless this write ran before, rows were lost: equal ones of one offset count as one in different "
                "tasks; repartition by the columns of origin and write again'",
                taken_for_others,
                *queue,
            )

    def aborted(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many rows of the failed write stay stored."""
        stored = sum(message.rows for message in messages if isinstance(message, Written))
        _logger.warning("event=write_aborted rows_stored_by_finished_tasks=%d", stored)


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Writes a frame once."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, has_identity=options.job_id is not None)
        if options.job_id is None:
            _logger.warning(
                "event=at_least_once reason='no jobId: a task that runs again stores its rows again' topic=%s",
                options.topic,
            )
        elif SOURCE_TOPIC not in schema.fieldNames():
            _logger.warning(
                "event=identity_by_partition jobId=%s consequence='a repeated run is recognised only if its input is "
                "sliced as before; select the columns of origin'",
                options.job_id,
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task."""
        return self.send(self._run_identity(), iterator)

    def _run_identity(self) -> str | None:
        """Return the run of the identity: the job, and the batch under `foreachBatch`, because batches may be equal."""
        if self.options.job_id is None:
            return None
        task = _current_task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        return f"job {self.options.job_id}" + (f" query {query} batch {batch}" if query and batch else "")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the result of all tasks."""
        self.committed(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the failure of the write."""
        self.aborted(messages)


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Writes micro-batch after micro-batch."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite, has_identity=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's)
        """Log the result of all tasks of a micro-batch."""
        self.committed(messages)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Store the rows of one task of one micro-batch."""
        task = _current_task()
        query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if not query or not batch:
            raise SourceError(f"the task has no {_QUERY_ID} and {_BATCH_ID}: rows have no identity without them")
        return self.send(f"query {query} batch {batch}", iterator)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 (Spark's)
        """Log the failure of the micro-batch."""
        self.aborted(messages)


def _current_task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SourceError("a write runs in a task of Spark only")
    return task
