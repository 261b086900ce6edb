"""The data source `dledger`: what Spark asks for, handed to the modules that do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .errors import OptionError
from .options import ReadOptions, means_a_stream, read_options, write_options
from .schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .batch import BatchReader
    from .streaming import RefusedStream, StreamReader
    from .writer import BatchWriter, StreamWriter


class DledgerDataSource(DataSource):
    """Topics as a table: batch and streaming reads from followers, batch and streaming writes.

        spark.read.format("dledger").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

    The options are listed in `dledger_spark.declared_options.OPTIONS`, the columns in `dledger_spark.schema.COLUMNS`.
    Constructing one is cheap and touches nothing: Spark pickles it and asks again in every process.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "dledger"

    def __reduce__(self) -> tuple[Callable[[dict[str, str]], object], tuple[dict[str, str]]]:
        return _restored, (dict(self.options),)

    def schema(self) -> str:
        """The columns that the options choose. Raises `OptionError`."""
        return ddl(self._columns_options().columns)

    def reader(self, schema: StructType) -> BatchReader:
        """A batch read. Raises `OptionError`."""
        from .batch import batch_reader

        return batch_reader(read_options(self.options, "batch").with_columns(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:  # noqa: N802 (Spark's name)
        """A streaming read; one that raises the `OptionError` when it is used if the options are wrong."""
        from .streaming import RefusedStream, StreamReader

        try:
            return StreamReader(read_options(self.options, "stream").with_columns(schema.fieldNames()))
        except OptionError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A batch write. Raises `OptionError` and `SourceError`."""
        from .writer import BatchWriter

        return BatchWriter(write_options(self.options, "batch sink"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 (Spark's name)
        """A streaming write. Raises `OptionError` and `SourceError`."""
        from .writer import StreamWriter

        return StreamWriter(write_options(self.options, "stream sink"), schema, overwrite)

    def _columns_options(self) -> ReadOptions:
        """The options of whichever read they are for: Spark asks for the schema before it says which."""
        try:
            return read_options(self.options, "batch")
        except OptionError as error:
            try:
                return read_options(self.options, "stream")
            except OptionError as of_stream:
                raise (of_stream if means_a_stream(self.options) else error) from None


def _restored(options: dict[str, str]) -> object:
    """The source in another process; says what to do where the package is missing."""
    try:
        from pyspark.sql.datasource import CaseInsensitiveDict

        from dledger_spark.source import DledgerDataSource as Source
    except ImportError as error:
        raise ImportError(
            f"{error}. Spark hands files of --py-files to executors and to planners of batch reads, but not to the "
            "planner of a stream: install the wheel with its extra `spark` in the environment of the driver too"
        ) from error
    return Source(CaseInsensitiveDict(options))


# Spark's pickler sends functions of `__main__` by value, so that this one runs where its module cannot be imported.
_restored.__module__ = "__main__"
