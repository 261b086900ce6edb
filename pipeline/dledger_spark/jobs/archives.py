"""An archive: Parquet files of messages by topic and day, of which only the files in the latest manifest count.

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

from ..errors import JobError
from ..schema import CORRUPT_RECORD, ddl
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
    CORRUPT_RECORD,
)
"""The columns of an archive: all that identify a message and all that a producer said; `headers` is in `properties`.

Files of earlier versions lack the last one: it is null there.
"""

DAY: Final = "day"
KEEP_SECONDS: Final = 86_400.0
"""Time in seconds for which files of older manifests, and of dead runs, are kept."""

_DATA: Final = "data"
_RUN: Final = "run="
_RUN_TIME: Final = "%Y%m%dT%H%M%S"


def read_archive(spark: SparkSession, path: str, *, version: int | None = None) -> DataFrame:
    """Return an archive's messages, with the columns `COLUMNS` and `day`; filters on `topic` and `day` prune files.

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
        """Return the URL of the archive."""
        return self._storage.url

    def existing(self, version: int | None = None) -> Manifest:
        """Return a version's manifest. Raises `JobError` if the archive has none, for instance at a mistyped path."""
        manifest = self.manifests.read(version)
        if not manifest.version:
            raise JobError(f"there is no archive at {self.url}: it has no manifest")
        return manifest

    def frame(self, manifest: Manifest, files: Iterable[ArchivedFile] | None = None) -> DataFrame:
        """Return the rows of a version, or of some of its files."""
        frame_files = manifest.files if files is None else list(files)
        if not frame_files:
            columns = f"{ddl(COLUMNS)}, {DAY} DATE"
            return self._spark.createDataFrame([], columns)
        return self._parquet([f"{self.url}/{file.path}" for file in frame_files]).select(*COLUMNS, DAY)

    def write(self, rows: DataFrame) -> tuple[str, list[ArchivedFile]]:
        """Write rows (`COLUMNS` and `day`) as a new run, and return its name and files. Only `publish` adds them."""
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

        Raises `JobError` if `before` is not the latest version any more, or if a sweep has removed the run's files.
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
        """Remove manifests replaced longer ago than this, and unlisted files of runs begun longer ago.

        Return the number of removed files.

        A reader that uses a removed manifest then fails, and so does a run that takes longer than `keep_seconds`.
        """
        manifests = [self.manifests.read(version) for version in self.manifests.versions()]
        if not manifests:
            return 0
        before = time.time() - keep_seconds
        self.manifests.sweep(before)
        old_versions = [
            manifest.version for manifest, following in pairwise(manifests) if following.committed_ms < before * 1000
        ]
        self.manifests.remove(old_versions)
        listed = {
            file.path for manifest in manifests if manifest.version not in old_versions for file in manifest.files
        }
        removed = 0
        for folder in self._storage.names(_DATA):
            if not folder.startswith(_RUN) or _start_time(folder.removeprefix(_RUN)) >= before:
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
        """Return the number of rows in a run's files by topic, day and file name."""
        counts = self._parquet([f"{self.url}/{folder}"]).groupBy("topic", DAY, "_metadata.file_name").count().collect()
        return {(row["topic"], row[DAY].isoformat(), row["file_name"]): row["count"] for row in counts}

    def _parquet(self, paths: list[str]) -> DataFrame:
        schema = f"{ddl(COLUMNS)}, {DAY} DATE, run STRING"
        return self._spark.read.schema(schema).option("basePath", f"{self.url}/{_DATA}").parquet(*paths)


def check_rows(what: str, expected: int, found: int) -> None:
    """Raise `JobError` unless as many rows were written as there should be."""
    if expected != found:
        raise JobError(f"{what}: {found} rows were written, {expected} were to be; nothing of it was published")


def _start_time(run: str) -> float:
    """Return a run's begin in seconds since 1970, infinity for other folders, so that their files are kept."""
    try:
        return datetime.strptime(run.partition("-")[0], _RUN_TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return float("inf")
