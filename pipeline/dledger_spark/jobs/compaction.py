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
    """`files_before` files became `files_after`; `removed` old ones, which nobody reads any more, were deleted."""

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

    Rows stay the same. Readers of the version before go on reading its files, which are deleted `keep_seconds` after
    they were replaced, by this job and by `archive`. Raises `JobError` if another job changes the archive meanwhile,
    and where no archive is.
    """
    archived = Archive(spark, path)
    before = latest = archived.existing()
    small = worthwhile(before.files, target_bytes)
    if small:
        on_phase(f"compacting {len(small):,} files of {len(before.files):,}")
        pieces = -(-sum(file.size_bytes for file in small) // target_bytes)
        rows = archived.frame(before, small).repartitionByRange(pieces, "topic", DAY, "partition", "offset")
        run, files = archived.write(rows.sortWithinPartitions("topic", DAY, "partition", "offset"))
        check_rows("compaction", sum(file.rows for file in small), sum(file.rows for file in files))
        replaced = set(small)
        rest = [file for file in before.files if file not in replaced]
        latest = archived.publish(before, "compaction", run, before.queues, [*rest, *files])
    removed = archived.sweep(keep_seconds)
    return CompactionResult(archived.url, latest.version, len(before.files), len(latest.files), latest.rows, removed)


def worthwhile(files: Iterable[ArchivedFile], target_bytes: int) -> list[ArchivedFile]:
    """The files to rewrite: those below half the target, of the topics and days that get fewer files by it.

    What is written anew has at most one file more than its size asks for, because a task may end in the middle of a
    day; so this comes to an end.
    """
    small = [file for file in files if 2 * file.size_bytes < target_bytes]
    counts = Counter((file.topic, file.day) for file in small)
    sizes: Counter[tuple[str, str]] = Counter()
    for file in small:
        sizes[file.topic, file.day] += file.size_bytes
    fewer = {place for place, number in counts.items() if number > -(-sizes[place] // target_bytes) + 1}
    return [file for file in small if (file.topic, file.day) in fewer]
