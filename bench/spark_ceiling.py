"""A Spark source that makes batches from nothing. It shows the rate that Spark itself allows for a source of such rows.

Each task makes one batch, of messages like those of `bench.spark`, and yields it again and again.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record
from dledger_spark.batches import ROWS_PER_BATCH, BatchCollector
from dledger_spark.entries import Span
from dledger_spark.partitions import Source
from dledger_spark.schema import ddl, selected_columns
from dledger_spark.wanted import RowFilter, TopicRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TASKS = 8
HOST = HostAddress("127.0.0.1", 10911)


class NothingSource(DataSource):
    """Source with the options `rows` and `valueBytes`, and with `columns` and `includeHeaders` as `dledger` has
    them.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "nothing"

    def schema(self) -> str:
        """Return the chosen columns."""
        has_headers = self.options.get("includeHeaders") == "true"
        columns = self.options.get("columns")
        return ddl(selected_columns(columns, include_headers=has_headers, has_corrupt_record=False))

    def reader(self, schema: "StructType") -> "NothingReader":
        """Return the reader that makes the rows."""
        columns = tuple(schema.fieldNames())
        return NothingReader(columns, int(self.options["rows"]), int(self.options["valueBytes"]))


class NothingReader(DataSourceReader):
    """Makes `rows` rows of these columns."""

    def __init__(self, columns: tuple[str, ...], rows: int, value_bytes: int) -> None:
        self._columns = columns
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Yield one task's share of the rows."""
        number = int(partition.value)
        left = self._rows * (number + 1) // TASKS - self._rows * number // TASKS
        batch = one_batch(self._columns, self._value_bytes)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def one_batch(columns: tuple[str, ...], value_bytes: int) -> "pa.RecordBatch":
    """Return a full batch of messages with a key, a tag and two properties each."""
    data = b"".join(record(number, value_bytes) for number in range(ROWS_PER_BATCH))
    topics = [TopicRange("bench", {0: (0, ROWS_PER_BATCH)})]
    source = Source(
        (), "broker-a", 0, "follower", "follower", 1.0, fail_on_data_loss=True, columns=columns, row_filter=RowFilter()
    )
    collector = BatchCollector(source, topics, has_entries=True)
    (batch,) = (*collector.add(data, [Span(0, len(data), 1, 1)]), *collector.rest())
    return batch


def record(number: int, value_bytes: int) -> bytes:
    """Return one stored message."""
    tag = "odd" if number % 2 else "even"
    own_properties = f"trace\x01{number:016x}\x02origin\x01bench\x02"
    unique_key = f"7F0000010A2B18B4AAC2{number:012X}"
    properties = f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02KEYS\x01key-{number}\x02TAGS\x01{tag}\x02"
    return encode_record(
        MessageRecord(
            topic="bench",
            queue_id=0,
            queue_offset=number,
            physical_offset=number * (value_bytes + 200),
            body=(bytes(range(256)) * (value_bytes // 256 + 2))[number % 256 :][:value_bytes],
            properties=(properties + own_properties).encode(),
            born_timestamp=1_763_000_000_000 + number,
            born_host=HOST,
            store_timestamp=1_763_000_000_000 + number,
            store_host=HOST,
        )
    )
