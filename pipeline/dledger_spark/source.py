"""The data source `dledger`: passes Spark's requests to the modules that handle them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .errors import OptionError
from .options import ReadOptions, means_a_stream, read_options, require_known, write_options
from .schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.datasource import CaseInsensitiveDict
    from pyspark.sql.types import StructType

    from .batch import BatchReader
    from .streaming import RefusedStream, StreamReader
    from .writer import BatchWriter, StreamWriter


class DledgerDataSource(DataSource):
    """Topics as a table: batch and streaming reads, by default from followers, and batch and streaming writes.

        spark.read.format("dledger").option("namesrv", "127.0.0.1:9876").option("subscribe", "orders").load()

    The options are listed in `dledger_spark.declared_options.OPTIONS`, the columns in `dledger_spark.schema.COLUMNS`.
    The constructor is cheap and does not use the network: Spark pickles the source, and makes it anew in every process.
    """

    def __init__(self, options: CaseInsensitiveDict) -> None:
        """Take Spark's options. Raises `UnknownOptionError`, before one of Spark's plans has the options."""
        super().__init__(options)
        require_known(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "dledger"

    def __reduce__(self) -> tuple[Callable[[dict[str, str]], object], tuple[dict[str, str]]]:
        return _restore_source, (dict(self.options),)

    def schema(self) -> str:
        """Return the columns that the options choose. Raises `OptionError`."""
        return ddl(self._options_of_any_read().columns)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a batch read. Raises `OptionError`."""
        from .batch import batch_reader

        return batch_reader(read_options(self.options, "batch").with_columns(schema.fieldNames()))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:  # noqa: N802 (Spark's name)
        """Return a streaming read. With wrong options, its use raises the `OptionError`."""
        from .streaming import RefusedStream, StreamReader

        try:
            return StreamReader(read_options(self.options, "stream").with_columns(schema.fieldNames()))
        except OptionError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return a batch write. Raises `OptionError` and `SourceError`."""
        from .writer import BatchWriter

        return BatchWriter(write_options(self.options, "batch sink"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 (Spark's name)
        """Return a streaming write. Raises `OptionError` and `SourceError`."""
        from .writer import StreamWriter

        return StreamWriter(write_options(self.options, "stream sink"), schema, overwrite)

    def _options_of_any_read(self) -> ReadOptions:
        """Return the options of a batch or streaming read: Spark needs the schema before it names the kind."""
        try:
            return read_options(self.options, "batch")
        except OptionError as error:
            try:
                return read_options(self.options, "stream")
            except OptionError as stream_error:
                raise (stream_error if means_a_stream(self.options) else error) from None


def _restore_source(options: dict[str, str]) -> object:
    """Return the source in another process. Raises `ImportError` with advice where the package is missing."""
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
_restore_source.__module__ = "__main__"
