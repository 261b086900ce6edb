"""Text tables for the results of `dledger spark`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..output import columns

if TYPE_CHECKING:
    from dledger_spark.jobs import (
        ArchiveResult,
        CompactionResult,
        LagResult,
        ReplayResult,
        StatsResult,
        VerifyResult,
    )


def archive(result: ArchiveResult, compacted: CompactionResult | None) -> str:
    """What was added, what there is now."""
    added = f"{result.rows:,} messages in {result.files:,} files, {result.size_bytes / 1e6:,.1f} MB"
    lines = [f"added {added}" if result.commits else "nothing to add"]
    if result.lost_rows:
        lines.append(f"{result.lost_rows:,} messages were gone before they were archived")
    version, files = result.version, result.total_files
    if compacted is not None:
        fewer = f"compacted {compacted.files_before:,} files into {compacted.files_after:,}"
        lines.append(fewer if compacted.version != version else "nothing to compact")
        version, files = compacted.version, compacted.files_after
    lines.append(f"{result.path}: version {version}, {result.total_rows:,} messages in {files:,} files")
    return "\n".join(lines)


def verify(result: VerifyResult) -> str:
    """Nodes, topics, findings, verdict."""
    nodes = [
        (one.group, one.node, one.first_position, one.end_position, one.entries, one.records, one.deleted_records)
        for one in result.replicas
    ]
    header = ("broker group", "node", "from", "to", "entries", "records", "of deleted topics")
    parts = [columns(header, nodes)]
    if result.topics:
        rows = [(one.group, one.topic, one.queues, one.messages) for one in result.topics]
        parts.append(columns(("broker group", "topic", "queues", "messages"), rows))
    parts += [f"{one.group} {one.node} at position {one.position}: {one.what}" for one in result.findings]
    parts.append(result.verdict)
    return "\n\n".join(parts)


def stats(result: StatsResult) -> str:
    """Three tables."""
    minutes = [
        (
            one.topic,
            _minute(one.minute_ms),
            one.messages,
            one.size_bytes,
            one.size_p50,
            one.size_p99,
            one.size_max,
            one.delay_p50_ms,
            one.delay_p99_ms,
            one.delay_max_ms,
        )
        for one in result.minutes
    ]
    header = (
        "topic", "minute (UTC)", "messages", "bytes", "size p50", "p99", "max", "delay p50 ms", "p99", "max",
    )  # fmt: skip
    keys = [(one.topic, one.key, one.messages, one.size_bytes) for one in result.keys]
    producers = [(one.topic, one.born_host, one.messages, one.size_bytes) for one in result.producers]
    parts = [columns(header, minutes)]
    if keys:
        parts.append(columns(("topic", "key", "messages", "bytes"), keys))
    if producers:
        parts.append(columns(("topic", "producer", "messages", "bytes"), producers))
    parts.append(f"{result.messages:,} messages, {result.size_bytes / 1e6:,.1f} MB")
    return "\n\n".join(parts)


def lag(result: LagResult) -> str:
    """One line for each sample of a group and topic, and for each that could not be taken."""
    rows = [(_second(time_ms), group, topic, behind) for time_ms, group, topic, behind in result.totals()]
    missed = [f"{_second(time_ms)}  no sample: {why}" for time_ms, why in result.missed]
    return "\n".join([columns(("time (UTC)", "group", "topic", "messages behind"), rows), *missed])


def replay(result: ReplayResult) -> str:
    """One line."""
    return f"{result.rows:,} messages sent to {result.topic} as {result.job_id} in {result.seconds:,.1f} s"


def _minute(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def _second(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
