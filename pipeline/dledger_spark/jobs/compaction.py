"""`compact`: an archive's many small files become few large ones, and readers notice nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .archives import DAY, KEEP_SECONDS, Archive, check_rows
from .inputs import OnPhase, silent
from .manifest import ArchivedFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """`files_before` files became `files_after`; `removed` old files were deleted."""

    path: str
    version: int
    files_before: int
    files_after: int
    rows: int
    removed: int


def compact(
    spark: SparkSession,
    *,
    path: str,
    target_bytes: int = TARGET_BYTES,
    keep_seconds: float = KEEP_SECONDS,
    on_phase: OnPhase = silent,
) -> CompactionResult:
    """Rewrite small files into files of about `target_bytes`, sorted by queue and offset, under a new manifest.

    Rows stay the same. Readers of the previous version continue to read its files, which are deleted `keep_seconds`
    after they were replaced, by this job and by `archive`. Raises `JobError` if another job changes the archive during
    this job, and where no archive is.
    """
    target_archive = Archive(spark, path)
    before = latest = target_archive.existing()
    small = worthwhile(before.files, target_bytes)
    if small:
        on_phase(f"compacting {len(small):,} files of {len(before.files):,}")
        file_count = -(-sum(file.size_bytes for file in small) // target_bytes)
        rows = target_archive.frame(before, small).repartitionByRange(file_count, "topic", DAY, "partition", "offset")
        run, files = target_archive.write(rows.sortWithinPartitions("topic", DAY, "partition", "offset"))
        check_rows("compaction", sum(file.rows for file in small), sum(file.rows for file in files))
        replaced = set(small)
        rest = [file for file in before.files if file not in replaced]
        latest = target_archive.publish(before, "compaction", run, before.queues, [*rest, *files])
    removed = target_archive.sweep(keep_seconds)
    return CompactionResult(
        target_archive.url, latest.version, len(before.files), len(latest.files), latest.rows, removed
    )


def worthwhile(files: Iterable[ArchivedFile], target_bytes: int) -> list[ArchivedFile]:
    """Return the files to rewrite: files below half the target, if their topic and day then have fewer files.

    A task may end in the middle of a day, so new files are at most one more than their size requires. So compaction
    comes to an end.
    """
    small = [file for file in files if 2 * file.size_bytes < target_bytes]
    counts = Counter((file.topic, file.day) for file in small)
    sizes: Counter[tuple[str, str]] = Counter()
    for file in small:
        sizes[file.topic, file.day] += file.size_bytes
    fewer = {topic_day for topic_day, number in counts.items() if number > -(-sizes[topic_day] // target_bytes) + 1}
    return [file for file in small if (file.topic, file.day) in fewer]
