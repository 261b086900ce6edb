"""`dledger spark`: jobs over everything that a cluster holds, run by Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import click

from ..errors import AdminError
from ..output import emit, output_option
from . import spark_tables as tables
from .options import namesrv_option
from .spark_progress import say
from .spark_sessions import errors_in_one_line, job

Command = TypeVar("Command", bound=Callable[..., object])


def time_ms(text: str | None) -> int | None:
    """A time given as ms since 1970 or as ISO 8601, local unless it names a time zone."""
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise AdminError(
            f"{text!r} is no time: milliseconds since 1970, or a time such as 2026-01-31T12:00 is expected"
        ) from None


def session_options(command: Command) -> Command:
    """Add `--master` and `--conf`, as parameters `master` and `settings`."""
    command = click.option(
        "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
    )(command)
    return click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Where Spark runs, e.g. spark://host:7077.",
    )(command)


def read_from_option(command: Command) -> Command:
    """Add `--read-from`, as parameter `read_from`."""
    return click.option(
        "--read-from",
        type=click.Choice(["follower", "learner", "any", "leader"]),
        default="follower",
        show_default=True,
        help="Which replicas are read.",
    )(command)


def between_options(command: Command) -> Command:
    """Add `--from` and `--to`, as parameters `begin` and `end`."""
    command = click.option("--to", "end", metavar="TIME", help="Only messages stored before.")(command)
    return click.option("--from", "begin", metavar="TIME", help="Only messages stored at or after; ms or ISO 8601.")(
        command
    )


@click.group()
def spark() -> None:
    """Archive, verify, measure and replay messages with Spark; reads followers unless told otherwise."""


@spark.command()
@namesrv_option
@click.option("--topics", required=True, metavar="A[,B...]")
@click.option("--path", required=True, metavar="PATH", help="Folder of the archive, or a URL that Spark can write to.")
@click.option("--compact", is_flag=True, help="Rewrite small files into large ones afterwards.")
@click.option("--mode", type=click.Choice(["auto", "segments", "queues"]), default="auto", show_default=True)
@click.option("--rows-per-commit", type=click.IntRange(min=1), default=5_000_000, show_default=True)
@click.option("--allow-data-loss", is_flag=True, help="Go on if retention removed what was not archived yet.")
@read_from_option
@session_options
@output_option
def archive(
    namesrv: str,
    topics: str,
    path: str,
    compact: bool,
    mode: str,
    rows_per_commit: int,
    allow_data_loss: bool,
    read_from: str,
    master: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    """Add what topics hold to an archive of Parquet files, exactly once; run it again to go on."""
    with job("archive", master, settings) as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.archive(
            session,
            namesrv=namesrv,
            topics=topics,
            path=path,
            mode=mode,  # type: ignore[arg-type]  # click has checked it
            read_from=read_from,
            rows_per_commit=rows_per_commit,
            fail_on_data_loss=not allow_data_loss,
            on_phase=on_phase,
        )
        compacted = jobs.compact(session, path=path, on_phase=on_phase) if compact else None
    emit({"archive": result, "compaction": compacted}, output, lambda _: tables.archive(result, compacted))


@spark.command()
@namesrv_option
@click.option("--group", "groups", multiple=True, help="Only this broker group; repeatable.  [default: all]")
@click.option("--include-leader", is_flag=True, help="Read the leader's log too.")
@click.option(
    "--min-nodes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How many nodes of each broker group must be read.",
)
@session_options
@output_option
@click.pass_context
def verify(
    context: click.Context,
    namesrv: str,
    groups: tuple[str, ...],
    include_leader: bool,
    min_nodes: int,
    master: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    """Read the whole log of each follower and check it; exit code 0 only if everything was read and holds."""
    with job("verify", master, settings) as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.verify(
            session,
            namesrv=namesrv,
            groups=groups,
            include_leader=include_leader,
            min_nodes=min_nodes,
            on_phase=on_phase,
        )
    emit(result, output, tables.verify)
    if result.verdict != "valid":
        context.exit(1)


@spark.command()
@namesrv_option
@click.option("--topics", required=True, metavar="A[,B...]")
@between_options
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many keys and producers.")
@read_from_option
@session_options
@output_option
def stats(
    namesrv: str,
    topics: str,
    begin: str | None,
    end: str | None,
    top: int,
    read_from: str,
    master: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    """Count messages, bytes, sizes and delays by topic and minute; heavy keys; producers."""
    from_ms, to_ms = time_ms(begin), time_ms(end)
    with job("stats", master, settings) as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.stats(
            session,
            namesrv=namesrv,
            topics=topics,
            from_ms=from_ms,
            to_ms=to_ms,
            read_from=read_from,
            top=top,
            on_phase=on_phase,
        )
    emit(result, output, tables.stats)


@spark.command()
@namesrv_option
@click.option("--group", "groups", multiple=True, help="A consumer group; repeatable.  [default: all]")
@click.option("--topics", default="", metavar="A[,B...]", help="[default: all]")
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--interval", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds between samples."
)
@click.option("--path", metavar="PATH", help="Append the samples to this Parquet folder.")
@session_options
@output_option
def lag(
    namesrv: str,
    groups: tuple[str, ...],
    topics: str,
    samples: int,
    interval: float,
    path: str | None,
    master: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    """Sample how far consumer groups are behind."""
    with errors_in_one_line():
        from dledger_spark import jobs

        result = jobs.lag(
            namesrv=namesrv, groups=groups, topics=topics, samples=samples, interval_s=interval, on_phase=say
        )
    if path is not None and result.samples:
        with job("lag", master, settings) as (session, on_phase):
            on_phase("writing the samples")
            result.frame(session).write.mode("append").parquet(path)
    emit(result, output, tables.lag)


@spark.command()
@namesrv_option
@click.option("--archive", "path", metavar="PATH", help="Replay messages of this archive.")
@click.option("--topics", default="", metavar="A[,B...]", help="Replay these topics, or only these of the archive.")
@between_options
@click.option("--where", metavar="SQL", help="Only rows for which this condition holds, e.g. \"tags = 'paid'\".")
@click.option("--to-topic", required=True)
@click.option("--to-namesrv", metavar="HOST:PORT", help="Send to another cluster.  [default: --namesrv]")
@click.option("--job-id", required=True, help="Repeated within the broker's window, nothing is stored twice.")
@click.option("--rate", type=click.IntRange(min=1), help="At most so many messages a second.")
@click.option("--same-queues", is_flag=True, help="Send each message to the queue of the number it came from.")
@read_from_option
@session_options
@output_option
def replay(
    namesrv: str,
    path: str | None,
    topics: str,
    begin: str | None,
    end: str | None,
    where: str | None,
    to_topic: str,
    to_namesrv: str | None,
    job_id: str,
    rate: int | None,
    same_queues: bool,
    read_from: str,
    master: str,
    settings: tuple[str, ...],
    output: str,
) -> None:
    """Send messages of an archive, or of topics, to a topic again."""
    from_ms, to_ms = time_ms(begin), time_ms(end)
    with job("replay", master, settings) as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.replay(
            session,
            namesrv=namesrv,
            to_topic=to_topic,
            job_id=job_id,
            archive=path,
            topics=topics,
            from_ms=from_ms,
            to_ms=to_ms,
            where=where,
            rate=rate,
            same_queues=same_queues,
            to_namesrv=to_namesrv,
            read_from=read_from,
            on_phase=on_phase,
        )
    emit(result, output, tables.replay)
