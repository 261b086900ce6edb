"""`archive`: the messages of topics as Parquet, exactly once, continued by every further run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from ..errors import DataLossError
from ..offsets import Queue
from ..plans import Cluster
from ..streaming import proportional_shares
from .archives import COLUMNS, DAY, Archive, check_rows
from .errors import JobError
from .inputs import OnPhase, checked_options, load, pinned, range_options, silent, topic_list
from .manifest import ArchivedQueue, Manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

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
    """What a run of `archive` added, and what the archive has now.

    `commits` versions were published, the last one is `version`; `lost_rows` were removed by retention before they were
    archived.
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
    on_phase: OnPhase = silent,
) -> ArchiveResult:
    """Add to the archive at `path` what the topics hold now and it does not have yet.

    What is there when the job starts is archived, in pieces of at most `rows_per_commit` rows; each is published by a
    manifest of its own, so a job that is killed loses at most the piece under way, and the next run goes on exactly
    behind the last one. Rows are in the archive exactly once, whatever happens. `mode="auto"` reads the log itself if
    everything it has is wanted, else queue by queue. Use one job at a time for one archive: of two, one fails.

    Raises `DataLossError` if messages are gone that were not archived yet, unless `fail_on_data_loss` is false;
    `OptionError`, `NoReplicaError` and other `SourceError`s; `JobError` if a topic is deleted meanwhile.
    """
    options = {
        "namesrv": namesrv,
        "readFrom": read_from,
        "columns": ",".join(COLUMNS),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    archived = Archive(spark, path)
    lost = 0
    asking = checked_options({**options, "subscribe": ",".join(topic_list(topics))})
    with closing(Cluster(asking)) as cluster, ExitStack() as pins:
        on_phase("looking at what there is")
        target = kept_queues(cluster)
        before = latest = archived.manifests.read()
        while wanted := wanted_ranges(latest, target, fail_on_data_loss):
            piece = at_most(wanted, rows_per_commit)
            on_phase(f"archiving {count(piece):,} of {count(wanted):,} messages")
            reading = {
                **options,
                **range_options(
                    {queue: one.start for queue, one in piece.items()}, {queue: one.end for queue, one in piece.items()}
                ),
                "mode": mode_for(piece, target) if mode == "auto" else mode,
            }
            with pins.pop_all():  # until this piece is read: the pin of the one before keeps this one's messages, too
                pinned_reading = pins.enter_context(pinned(reading))
                run, files = archived.write(load(spark, pinned_reading).withColumn(DAY, day_of_store_time()))
            check_same_topics(piece, kept_queues(cluster))
            missing = count(piece) - sum(file.rows for file in files)
            if missing < 0 or fail_on_data_loss:
                check_rows("archive", count(piece), count(piece) - missing)
            latest = archived.publish(latest, "archive", run, _progress(latest, piece), [*latest.files, *files])
            lost += missing + sum(one.gap for one in piece.values())
    archived.sweep()
    return ArchiveResult(
        path=archived.url,
        version=latest.version,
        commits=latest.version - before.version,
        rows=latest.rows - before.rows,
        files=len(latest.files) - len(before.files),
        size_bytes=latest.size_bytes - before.size_bytes,
        lost_rows=lost,
        total_rows=latest.rows,
        total_files=len(latest.files),
    )


def kept_queues(cluster: Cluster) -> dict[Queue, KeptQueue]:
    """What the cluster keeps of the subscribed queues that ever had a message."""
    queues = cluster.queues()
    kept: dict[Queue, KeptQueue] = {}
    for group in sorted({queue.group for queue in queues}):
        plan = cluster.plan(group, {queue.topic for queue in queues})
        kept |= {
            queue: KeptQueue(plan.created[queue.topic], *plan.bounds[queue]) for queue in queues if queue in plan.bounds
        }
    return kept


def wanted_ranges(
    manifest: Manifest, kept: Mapping[Queue, KeptQueue], fail_on_data_loss: bool = True
) -> dict[Queue, Range]:
    """What is kept and not archived yet.

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
    """The next piece: about equally far through every queue."""
    shares = proportional_shares({queue: one.end - one.start for queue, one in wanted.items()}, rows)
    return {queue: one._replace(end=one.start + shares[queue]) for queue, one in wanted.items() if shares[queue]}


def count(ranges: Mapping[Queue, Range]) -> int:
    """How many messages ranges have."""
    return sum(one.end - one.start for one in ranges.values())


def mode_for(piece: Mapping[Queue, Range], kept: Mapping[Queue, KeptQueue]) -> str:
    """How to read a piece: the log itself if that is everything, else queue by queue, which skips the rest."""
    everything = all(
        queue in piece and (piece[queue].start, piece[queue].end) == (one.first, one.end)
        for queue, one in kept.items()
        if one.first < one.end
    )
    return "segments" if everything else "queues"


def day_of_store_time() -> Column:
    """The UTC day of a message's store time, whatever time zone the session has."""
    from pyspark.sql import functions

    return functions.expr("date_from_unix_date(cast(unix_micros(timestamp) div 86400000000 as int))")


def check_same_topics(piece: Mapping[Queue, Range], kept: Mapping[Queue, KeptQueue]) -> None:
    """Raise `JobError` if a topic was deleted since `piece` was planned: another one's messages may be among them."""
    for queue, one in piece.items():
        if queue not in kept or kept[queue].created != one.created:
            raise JobError(f"topic {queue.topic} was deleted while it was archived; nothing of it was published")


def _progress(manifest: Manifest, piece: Mapping[Queue, Range]) -> list[ArchivedQueue]:
    """How far every queue is archived with this piece."""
    added = {queue: ArchivedQueue(*queue, created=one.created, next=one.end) for queue, one in piece.items()}
    return list((manifest.archived() | added).values())
