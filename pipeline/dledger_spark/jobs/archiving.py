"""`archive`: the messages of topics as Parquet, exactly once, continued by every further run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from ..errors import DataLossError, JobError
from ..offsets import Queue
from ..options import BadRecords
from ..plans import Cluster
from ..schema import CORRUPT_RECORD
from ..streaming import proportional_shares
from .archives import COLUMNS, DAY, Archive, check_rows
from .inputs import (
    OnPhase,
    bad_records_option,
    checked_options,
    columns_option,
    load,
    pinned,
    range_options,
    silent,
    topic_list,
    with_corrupt_record,
)
from .manifest import ArchivedQueue, Manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

ROWS_PER_COMMIT: Final = 5_000_000
Mode: TypeAlias = Literal["auto", "segments", "queues"]


class KeptQueue(NamedTuple):
    """A queue of the cluster: where its topic's incarnation starts, and which offsets it keeps."""

    created: int
    first: int
    end: int


class Range(NamedTuple):
    """Offsets of a queue to archive, `start` to `end` - 1; `gap` messages before them are gone."""

    created: int
    start: int
    end: int
    gap: int


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """Result of a run of `archive`: the added rows, and the present content.

    `commits` versions were published, the last one is `version`; `lost_rows` were removed by retention before they were
    archived. The bodies of `bad_bodies` messages could not be decoded, and `unknown_births` rows have no
    `born_timestamp`.
    """

    path: str
    version: int
    commits: int
    rows: int
    files: int
    size_bytes: int
    lost_rows: int
    total_rows: int
    total_files: int
    bad_bodies: int = 0
    unknown_births: int = 0


def archive(
    spark: SparkSession,
    *,
    namesrv: str,
    topics: str | Sequence[str],
    path: str,
    mode: Mode = "auto",
    read_from: str = "follower",
    rows_per_commit: int = ROWS_PER_COMMIT,
    fail_on_data_loss: bool = True,
    bad_records: BadRecords = "PERMISSIVE",
    on_phase: OnPhase = silent,
) -> ArchiveResult:
    """Add to the archive at `path` the messages of the topics that it does not have yet.

    The job archives the messages that exist when it starts, in parts of at most `rows_per_commit` rows. Each part is
    published by a manifest of its own. So a killed job loses at most the part under way, and the next run continues
    exactly behind the last published part. Each row is in the archive exactly once. `mode="auto"` reads the log itself
    if all of it is wanted, else queue by queue. Use one job at a time for one archive: of two, one fails.

    Messages whose bodies cannot be decoded are archived with the raw body in `_corrupt_record` (`bad_records` =
    `PERMISSIVE`), are left out (`DROPMALFORMED`) or fail the job (`FAILFAST`).

    Raises `DataLossError` if messages are gone that were not archived yet, unless `fail_on_data_loss` is false. Raises
    `OptionError`, `NoReplicaError` and other `SourceError`s, and `JobError` if a topic is deleted during the job.
    """
    from pyspark.sql import Observation

    options = {
        "namesrv": namesrv,
        "readFrom": read_from,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        **bad_records_option(bad_records),
        **columns_option(COLUMNS, bad_records),
    }
    target_archive = Archive(spark, path)
    lost_rows = bad_bodies = unknown_births = 0
    subscription = checked_options({**options, "subscribe": ",".join(topic_list(topics))})
    with closing(Cluster(subscription)) as cluster, ExitStack() as pins:
        on_phase("looking at what there is")
        kept = kept_queues(cluster)
        before = latest = target_archive.manifests.read()
        while wanted := wanted_ranges(latest, kept, fail_on_data_loss):
            part = at_most(wanted, rows_per_commit)
            on_phase(f"archiving {count(part):,} of {count(wanted):,} messages")
            part_options = {
                **options,
                **range_options(
                    {queue: offsets.start for queue, offsets in part.items()},
                    {queue: offsets.end for queue, offsets in part.items()},
                ),
                "mode": mode_for(part, kept) if mode == "auto" else mode,
            }
            with pins.pop_all():  # until this part is read: the previous part's pin keeps this part's messages, too
                pinned_options = pins.enter_context(pinned(part_options))
                observed = Observation()
                run, files = target_archive.write(_observe_rows(load(spark, pinned_options), bad_records, observed))
            check_same_topics(part, kept_queues(cluster))
            dropped = observed.get["bad"] if bad_records == "DROPMALFORMED" else 0
            missing = count(part) - dropped - sum(file.rows for file in files)
            if missing < 0 or fail_on_data_loss:
                check_rows("archive", count(part) - dropped, count(part) - dropped - missing)
            bad_bodies += observed.get["bad"]
            unknown_births += observed.get["births"]
            latest = target_archive.publish(
                latest, "archive", run, _merge_progress(latest, part), [*latest.files, *files]
            )
            lost_rows += missing + sum(offsets.gap for offsets in part.values())
    target_archive.sweep()
    return ArchiveResult(
        path=target_archive.url,
        version=latest.version,
        commits=latest.version - before.version,
        rows=latest.rows - before.rows,
        files=len(latest.files) - len(before.files),
        size_bytes=latest.size_bytes - before.size_bytes,
        lost_rows=lost_rows,
        total_rows=latest.rows,
        total_files=len(latest.files),
        bad_bodies=bad_bodies,
        unknown_births=unknown_births,
    )


def _observe_rows(messages: DataFrame, bad_records: BadRecords, observed: Observation) -> DataFrame:
    """Return the rows to write; `observed` counts bad bodies, and rows without a time of birth."""
    from pyspark.sql import functions as f

    is_bad = f.col(CORRUPT_RECORD).isNotNull()
    rows = with_corrupt_record(messages).withColumn(DAY, day_of_store_time())
    is_written = ~is_bad if bad_records == "DROPMALFORMED" else f.lit(col=True)
    births = f.count_if(is_written & f.col("born_timestamp").isNull())
    return rows.observe(observed, f.count_if(is_bad).alias("bad"), births.alias("births")).where(is_written)


def kept_queues(cluster: Cluster) -> dict[Queue, KeptQueue]:
    """Return the kept parts of the subscribed queues that ever had a message."""
    queues = cluster.queues()
    kept: dict[Queue, KeptQueue] = {}
    for group in sorted({queue.group for queue in queues}):
        plan = cluster.plan(group, {queue.topic for queue in queues})
        wanted = {queue for queue in queues if queue in plan.bounds} | cluster.left(plan)
        kept |= {queue: KeptQueue(plan.created[queue.topic], *plan.bounds[queue]) for queue in sorted(wanted)}
    return kept


def wanted_ranges(
    manifest: Manifest, kept: Mapping[Queue, KeptQueue], fail_on_data_loss: bool = True
) -> dict[Queue, Range]:
    """Return the ranges that are kept and not archived yet.

    A queue that is new, or whose topic was deleted and created again, is wanted from its first kept offset on. Raises
    `DataLossError` if retention was faster than the archive, unless that is allowed.
    """
    archived = manifest.archived()
    wanted: dict[Queue, Range] = {}
    for queue, (created, first, end) in kept.items():
        before = archived.get(queue)
        start = before.next if before is not None and before.created == created else first
        gap = max(first - start, 0)
        if gap and fail_on_data_loss:
            raise DataLossError(f"offsets {start} to {first - 1} of {queue} are not archived and not kept any more")
        if start > end:
            raise JobError(f"{queue} is archived up to offset {start}, but ends at {end}: is this another cluster?")
        if start + gap < end:
            wanted[queue] = Range(created, start + gap, end, gap)
    return wanted


def at_most(wanted: Mapping[Queue, Range], rows: int) -> dict[Queue, Range]:
    """Return the next part of `rows` rows: about equally far through every queue."""
    shares = proportional_shares({queue: offsets.end - offsets.start for queue, offsets in wanted.items()}, rows)
    return {
        queue: offsets._replace(end=offsets.start + shares[queue]) for queue, offsets in wanted.items() if shares[queue]
    }


def count(ranges: Mapping[Queue, Range]) -> int:
    """Return the number of messages in ranges."""
    return sum(offsets.end - offsets.start for offsets in ranges.values())


def mode_for(part: Mapping[Queue, Range], kept: Mapping[Queue, KeptQueue]) -> str:
    """Return the mode to read a part: the log itself if the part has all kept messages, else queue by queue."""
    everything = all(
        queue in part and (part[queue].start, part[queue].end) == (kept_queue.first, kept_queue.end)
        for queue, kept_queue in kept.items()
        if kept_queue.first < kept_queue.end
    )
    return "segments" if everything else "queues"


def day_of_store_time() -> Column:
    """Return the UTC day of a message's store time, in every time zone of the session."""
    from pyspark.sql import functions

    return functions.expr("date_from_unix_date(cast(unix_micros(timestamp) div 86400000000 as int))")


def check_same_topics(part: Mapping[Queue, Range], kept: Mapping[Queue, KeptQueue]) -> None:
    """Raise `JobError` if a topic was deleted since `part` was planned: it may have messages of a later topic."""
    for queue, offsets in part.items():
        if queue not in kept or kept[queue].created != offsets.created:
            raise JobError(f"topic {queue.topic} was deleted while it was archived; nothing of it was published")


def _merge_progress(manifest: Manifest, part: Mapping[Queue, Range]) -> list[ArchivedQueue]:
    """Return the progress of every queue after this part."""
    added = {queue: ArchivedQueue(*queue, created=offsets.created, next=offsets.end) for queue, offsets in part.items()}
    return list((manifest.archived() | added).values())
