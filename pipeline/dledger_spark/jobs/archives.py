"""An archive: Parquet files of messages by topic and day, of which only those count that the latest manifest lists.

    data/run=<run>/topic=<topic>/day=<YYYY-MM-DD>/part-….parquet     what runs wrote
    manifests/<version>.json                                         which of it is the archive

A run writes a folder of its own and then publishes a manifest that lists it. Until that moment no reader sees any of
it, and never if the run dies before. The folder is swept up later.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ..schema import ddl
from .errors import JobError
from .manifest import ArchivedFile, ArchivedQueue, Kind, Manifest, Manifests
from .storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS: Final = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "broker_group",
    "queue_id",
    "tags",
    "keys",
    "born_timestamp",
    "born_host",
    "store_host",
    "message_id",
    "reconsume_times",
    "properties",
    "physical_offset",
)
"""The columns of an archive: all that identify a message and all that a producer said; `headers` is in `properties`."""

DAY: Final = "day"
KEEP_SECONDS: Final = 86_400.0
"""How long files stay that an older manifest lists, or that a dead run left."""

_DATA: Final = "data"
_RUN: Final = "run="
_RUN_TIME: Final = "%Y%m%dT%H%M%S"


def read_archive(spark: SparkSession, path: str, *, version: int | None = None) -> DataFrame:
    """The messages of an archive, with the columns `COLUMNS` and `day`; filters on `topic` and `day` prune files.

    Reads the latest version, or another one that is still kept. Raises `JobError`, also where no archive is.
    """
    archived = Archive(spark, path)
    return archived.frame(archived.existing(version))


class Archive:
    """One archive, and the session that reads and writes it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._storage = open_storage(spark, path)
        self.manifests = Manifests(self._storage)

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._storage.url

    def existing(self, version: int | None = None) -> Manifest:
        """A version of an archive that is there: a path that was mistyped has none. Raises `JobError`."""
        manifest = self.manifests.read(version)
        if not manifest.version:
            raise JobError(f"there is no archive at {self.url}: it has no manifest")
        return manifest

    def frame(self, manifest: Manifest, files: Iterable[ArchivedFile] | None = None) -> DataFrame:
        """The rows of a version, or of some of its files."""
        chosen = manifest.files if files is None else list(files)
        if not chosen:
            columns = f"{ddl(COLUMNS)}, {DAY} DATE"
            return self._spark.createDataFrame([], columns)
        return self._parquet([f"{self.url}/{file.path}" for file in chosen]).select(*COLUMNS, DAY)

    def write(self, rows: DataFrame) -> tuple[str, list[ArchivedFile]]:
        """Write rows (`COLUMNS` and `day`) as a new run; its name, and its files. Nothing of them counts yet."""
        run = f"{datetime.now(UTC):{_RUN_TIME}}-{uuid.uuid4().hex[:12]}"
        folder = f"{_DATA}/{_RUN}{run}"
        rows.write.mode("errorifexists").partitionBy("topic", DAY).parquet(f"{self.url}/{folder}")
        sizes = self._storage.files(folder)
        files: list[ArchivedFile] = []
        if sizes:
            counts = self._row_counts(folder)
            for path, size_bytes in sorted(sizes.items()):
                topic, day, name = path.split("/")[-3:]
                topic, day = unquote(topic.partition("=")[2]), day.partition("=")[2]
                files.append(ArchivedFile(path, topic, day, counts.get((topic, day, name), 0), size_bytes))
        self._storage.sync([file.path for file in files])
        return run, files

    def publish(
        self, before: Manifest, kind: Kind, run: str, queues: Iterable[ArchivedQueue], files: Iterable[ArchivedFile]
    ) -> Manifest:
        """Make these files the archive's next version.

        Raises `JobError` if `before` is not the latest any more, or if the run's files were swept up meanwhile.
        """
        files = list(files)
        folder = f"{_DATA}/{_RUN}{run}"
        present = self._storage.files(folder)
        if any(file.path not in present for file in files if file.path.startswith(f"{folder}/")):
            raise JobError(
                f"files of {folder} were swept up before they were published: nothing of it is in the archive"
            )
        manifest = Manifest(
            version=before.version + 1,
            committed_ms=int(time.time() * 1000),
            kind=kind,
            run=run,
            columns=list(COLUMNS),
            queues=sorted(queues, key=lambda queue: queue.queue),
            files=sorted(files, key=lambda file: (file.topic, file.day, file.path)),
        )
        self.manifests.commit(manifest)
        return manifest

    def sweep(self, keep_seconds: float = KEEP_SECONDS) -> int:
        """Remove manifests that were replaced, and files of runs that ended, longer ago than this; how many files.

        A reader that began with such a manifest fails afterwards, and so does a run that has been writing for longer.
        """
        kept = [self.manifests.read(version) for version in self.manifests.versions()]
        if not kept:
            return 0
        before = time.time() - keep_seconds
        old = [manifest.version for manifest, following in pairwise(kept) if following.committed_ms < before * 1000]
        self.manifests.remove(old)
        listed = {file.path for manifest in kept if manifest.version not in old for file in manifest.files}
        removed = 0
        for folder in self._storage.names(_DATA):
            if not folder.startswith(_RUN) or _started(folder.removeprefix(_RUN)) >= before:
                continue
            files = self._storage.files(f"{_DATA}/{folder}")
            unlisted = [path for path in files if path not in listed]
            removed += len(unlisted)
            if len(unlisted) == len(files):
                self._storage.remove(f"{_DATA}/{folder}")
            else:
                for path in unlisted:
                    self._storage.remove(path)
        return removed

    def _row_counts(self, folder: str) -> dict[tuple[str, str, str], int]:
        """The rows of a run's files by topic, day and file name."""
        counted = self._parquet([f"{self.url}/{folder}"]).groupBy("topic", DAY, "_metadata.file_name").count().collect()
        return {(row["topic"], row[DAY].isoformat(), row["file_name"]): row["count"] for row in counted}

    def _parquet(self, paths: list[str]) -> DataFrame:
        schema = f"{ddl(COLUMNS)}, {DAY} DATE, run STRING"
        return self._spark.read.schema(schema).option("basePath", f"{self.url}/{_DATA}").parquet(*paths)


def check_rows(what: str, expected: int, found: int) -> None:
    """Raise `JobError` unless as many rows were written as there should be."""
    if expected != found:
        raise JobError(f"{what}: {found} rows were written, {expected} were to be; nothing of it was published")


def _started(run: str) -> float:
    """When a run began, in seconds since 1970; what has no such name is nobody's, and is kept."""
    try:
        return datetime.strptime(run.partition("-")[0], _RUN_TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("inf")
