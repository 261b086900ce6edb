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
    """Return the table of added and present files."""
    added = f"{result.rows:,} messages in {result.files:,} files, {result.size_bytes / 1e6:,.1f} MB"
    lines = [f"added {added}" if result.commits else "nothing to add"]
    if result.lost_rows:
        lines.append(f"{result.lost_rows:,} messages were gone before they were archived")
    lines += _describe_oddities(result)
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
        (row.group, row.node, row.first_position, row.end_position, row.entries, row.records, row.deleted_records)
        for row in result.replicas
    ]
    header = ("broker group", "node", "from", "to", "entries", "records", "of deleted topics")
    parts = [columns(header, nodes)]
    if result.topics:
        rows = [(row.group, row.topic, row.queues, row.messages) for row in result.topics]
        parts.append(columns(("broker group", "topic", "queues", "messages"), rows))
    parts += [f"{row.group} {row.node} at position {row.position}: {row.what}" for row in result.findings]
    parts.append(result.verdict)
    return "\n\n".join(parts)


def stats(result: StatsResult) -> str:
    """Three tables."""
    minutes = [
        (
            row.topic,
            _format_minute(row.minute_ms),
            row.messages,
            row.size_bytes,
            row.size_p50,
            row.size_p99,
            row.size_max,
            *("" if ms is None else ms for ms in (row.delay_p50_ms, row.delay_p99_ms, row.delay_max_ms)),
        )
        for row in result.minutes
    ]
    header = (
        "topic", "minute (UTC)", "messages", "bytes", "size p50", "p99", "max", "delay p50 ms", "p99", "max",
    )  # fmt: skip
    keys = [(row.topic, row.key, row.messages, row.size_bytes) for row in result.keys]
    producers = [(row.topic, row.born_host, row.messages, row.size_bytes) for row in result.producers]
    parts = [columns(header, minutes)]
    if keys:
        parts.append(columns(("topic", "key", "messages", "bytes"), keys))
    if producers:
        parts.append(columns(("topic", "producer", "messages", "bytes"), producers))
    parts.append(
        "\n".join([f"{result.messages:,} messages, {result.size_bytes / 1e6:,.1f} MB", *_describe_oddities(result)])
    )
    return "\n\n".join(parts)


def lag(result: LagResult) -> str:
    """One line for each sample of a group and topic, and for each that could not be taken."""
    rows = [(_format_second(time_ms), group, topic, behind) for time_ms, group, topic, behind in result.totals()]
    missed = [f"{_format_second(time_ms)}  no sample: {why}" for time_ms, why in result.missed]
    return "\n".join([columns(("time (UTC)", "group", "topic", "messages behind"), rows), *missed])


def replay(result: ReplayResult) -> str:
    """One line, and another one if messages were left out."""
    sent = f"{result.rows:,} messages sent to {result.topic} as {result.job_id} in {result.seconds:,.1f} s"
    refused = [f"{result.refused_tags:,} messages have tags that no client sends"] if result.refused_tags else []
    return "\n".join([sent, *_describe_bad_bodies(result.bad_bodies), *refused])


def _describe_oddities(result: ArchiveResult | StatsResult) -> list[str]:
    births = [f"{result.unknown_births:,} messages have no time of birth between the years 1 and 9999"]
    return _describe_bad_bodies(result.bad_bodies) + (births if result.unknown_births else [])


def _describe_bad_bodies(count: int) -> list[str]:
    return [f"{count:,} messages have bodies that cannot be decoded"] if count else []


def _format_minute(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def _format_second(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
