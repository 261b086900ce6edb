"""`dledger spark`: jobs over everything that a cluster holds, run by Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

import click

from ..errors import AdminError
from ..help import HelpGroup
from ..output import emit, output_option, say
from . import spark_tables as tables
from .completing import broker_groups, consumer_groups, topic_lists
from .completing import topics as topics_there
from .options import FiniteFloat, namesrv_option, time_ms
from .spark_sessions import errors_in_one_line, job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dledger_spark.options import BadRecords

Command = TypeVar("Command", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class JobRun:
    """Options of every job: the cluster, Spark's master and settings, and the form of the result."""

    namesrv: str
    master: str
    settings: tuple[str, ...]
    output: str

    def session(self, name: str) -> AbstractContextManager[tuple[SparkSession, Callable[[str], None]]]:
        """Open a Spark session for a job, as `spark_sessions.job` does."""
        return job(name, self.namesrv, self.master, self.settings)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--namesrv`, `--master`, `--conf` and `-o`, as one parameter `run`."""

    @wraps(command)
    def wrapper(*, namesrv: str, master: str, settings: tuple[str, ...], output: str, **options: object) -> None:
        command(run=JobRun(namesrv, master, settings, output), **options)

    return namesrv_option(session_options(output_option(wrapper)))


def session_options(command: Command) -> Command:
    """Add `--master` and `--conf`, as parameters `master` and `settings`."""
    command = click.option(
        "--conf",
        "settings",
        multiple=True,
        callback=_check_settings,
        metavar="KEY=VALUE",
        help="A setting of Spark; repeatable.",
    )(command)
    return click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Spark's master, e.g. spark://host:7077.",
    )(command)


def _check_settings(_ctx: click.Context, _param: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    for setting in settings:
        if "=" not in setting:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE")
    return settings


def read_from_option(command: Command) -> Command:
    """Add `--read-from`, as parameter `read_from`."""
    return click.option(
        "--read-from",
        type=click.Choice(["follower", "learner", "any", "leader"]),
        default="follower",
        show_default=True,
        help="Replicas to read.",
    )(command)


def bad_records_option(command: Command) -> Command:
    """Add `--bad-records`, as parameter `bad_records`."""
    return click.option(
        "--bad-records",
        type=click.Choice(["PERMISSIVE", "DROPMALFORMED", "FAILFAST"], case_sensitive=False),
        default="PERMISSIVE",
        show_default=True,
        help="Messages with bodies that cannot be decoded: keep the raw body, leave them out, or fail.",
    )(command)


def between_options(command: Command) -> Command:
    """Add `--from` and `--to`, as parameters `begin` and `end`."""
    command = click.option("--to", "end", metavar="TIME", help="Only messages stored before.")(command)
    return click.option(
        "--from",
        "begin",
        metavar="TIME",
        help="Only messages stored at or after a time such as 2026-01-31T12:00, an age such as -15m, or ms since 1970.",
    )(command)


def _parse_time_range(begin: str | None, end: str | None) -> tuple[int | None, int | None]:
    """Return the times of `--from` and `--to`, in ms since 1970."""
    return (
        None if begin is None else time_ms("--from", begin),
        None if end is None else time_ms("--to", end),
    )


@click.group(cls=HelpGroup)
def spark() -> None:
    """Archive, verify, measure and replay messages with Spark; reads followers unless told otherwise."""


@spark.command()
@job_options
@click.option("--topics", required=True, metavar="A[,B...]", help="Topics to archive.", shell_complete=topic_lists)
@click.option("--path", required=True, metavar="PATH", help="Folder of the archive, or a URL that Spark can write to.")
@click.option("--compact", is_flag=True, help="Rewrite small files into large ones afterwards.")
@click.option(
    "--mode",
    type=click.Choice(["auto", "segments", "queues"]),
    default="auto",
    show_default=True,
    help="Read the log itself, or queue by queue; auto: the log, if all of it is wanted.",
)
@click.option(
    "--rows-per-commit",
    type=click.IntRange(min=1),
    default=5_000_000,
    show_default=True,
    help="Publish a new version of the archive after about this many messages.",
)
@click.option("--allow-data-loss", is_flag=True, help="Go on if retention removed messages that were not archived yet.")
@bad_records_option
@read_from_option
def archive(
    run: JobRun,
    topics: str,
    path: str,
    compact: bool,
    mode: str,
    rows_per_commit: int,
    allow_data_loss: bool,
    read_from: str,
    bad_records: BadRecords,
) -> None:
    """Add the messages of topics to an archive of Parquet files, exactly once; run it again to go on."""
    with run.session("archive") as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.archive(
            session,
            namesrv=run.namesrv,
            topics=topics,
            path=path,
            mode=mode,  # type: ignore[arg-type]  # click has checked it
            read_from=read_from,
            bad_records=bad_records,
            rows_per_commit=rows_per_commit,
            fail_on_data_loss=not allow_data_loss,
            on_phase=on_phase,
        )
        # Without a version there is no archive yet: the topics are empty.
        compacted = jobs.compact(session, path=path, on_phase=on_phase) if compact and result.version else None
    emit({"archive": result, "compaction": compacted}, run.output, lambda _: tables.archive(result, compacted))


@spark.command()
@job_options
@click.option(
    "--broker-group",
    "groups",
    multiple=True,
    shell_complete=broker_groups,
    help="Only this broker group; repeatable.  [default: all]",
)
@click.option("--include-leader", is_flag=True, help="Read the leader's log too.")
@click.option(
    "--min-nodes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Minimum number of nodes of each broker group that must be read.",
)
def verify(
    run: JobRun,
    groups: tuple[str, ...],
    include_leader: bool,
    min_nodes: int,
) -> None:
    """Read the whole log of each follower and check it; exit code 0 only if everything was read and holds."""
    with run.session("verify") as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.verify(
            session,
            namesrv=run.namesrv,
            groups=groups,
            include_leader=include_leader,
            min_nodes=min_nodes,
            on_phase=on_phase,
        )
    emit(result, run.output, tables.verify)
    if result.verdict != "valid":
        click.get_current_context().exit(1)


@spark.command()
@job_options
@click.option("--topics", required=True, metavar="A[,B...]", help="Topics to count.", shell_complete=topic_lists)
@between_options
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Number of keys and producers to show."
)
@bad_records_option
@read_from_option
def stats(
    run: JobRun,
    topics: str,
    begin: str | None,
    end: str | None,
    top: int,
    read_from: str,
    bad_records: BadRecords,
) -> None:
    """Count messages, bytes, sizes and delays by topic and minute; heavy keys; producers."""
    from_ms, to_ms = _parse_time_range(begin, end)
    with run.session("stats") as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.stats(
            session,
            namesrv=run.namesrv,
            topics=topics,
            from_ms=from_ms,
            to_ms=to_ms,
            read_from=read_from,
            bad_records=bad_records,
            top=top,
            on_phase=on_phase,
        )
    emit(result, run.output, tables.stats)


@spark.command()
@job_options
@click.option(
    "--group",
    "groups",
    multiple=True,
    shell_complete=consumer_groups,
    help="A consumer group; repeatable.  [default: all]",
)
@click.option(
    "--topics", default="", metavar="A[,B...]", help="Only these topics.  [default: all]", shell_complete=topic_lists
)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Number of samples.")
@click.option("--interval", type=FiniteFloat(min=0), default=10.0, show_default=True, help="Seconds between samples.")
@click.option("--path", metavar="PATH", help="Append the samples to this Parquet folder.")
def lag(
    run: JobRun,
    groups: tuple[str, ...],
    topics: str,
    samples: int,
    interval: float,
    path: str | None,
) -> None:
    """Sample how far consumer groups are behind."""
    with errors_in_one_line(run.namesrv):
        from dledger_spark import jobs

        result = jobs.lag(
            namesrv=run.namesrv, groups=groups, topics=topics, samples=samples, interval_s=interval, on_phase=say
        )
    if not result.samples and (groups or topics):
        named = " ".join([*(f"--group {name}" for name in groups), *([f"--topics {topics}"] if topics else [])])
        raise AdminError(f"nothing to sample for {named}: no consumer group has committed an offset there")
    if path is not None and result.samples:
        with run.session("lag") as (session, on_phase):
            on_phase("writing the samples")
            result.frame(session).write.mode("append").parquet(path)
    emit(result, run.output, tables.lag)


@spark.command()
@job_options
@click.option("--archive", "path", metavar="PATH", help="Replay messages of this archive.")
@click.option(
    "--topics",
    default="",
    metavar="A[,B...]",
    help="Replay these topics, or only these of the archive.",
    shell_complete=topic_lists,
)
@between_options
@click.option("--where", metavar="SQL", help="Only rows for which this condition holds, e.g. \"tags = 'paid'\".")
@click.option("--to-topic", required=True, help="Where to send.", shell_complete=topics_there)
@click.option("--to-namesrv", metavar="HOST:PORT", help="Send to another cluster.  [default: --namesrv]")
@click.option(
    "--job-id",
    required=True,
    help="Id of the job. If it is repeated within the broker's window, nothing is stored twice.",
)
@click.option("--rate", type=click.IntRange(min=1), help="Maximum number of messages a second, of all tasks together.")
@click.option(
    "--same-queues", is_flag=True, help="Send each message to the queue with the number of its original queue."
)
@bad_records_option
@read_from_option
def replay(
    run: JobRun,
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
    bad_records: BadRecords,
) -> None:
    """Send messages of an archive, or of topics, to a topic again."""
    from_ms, to_ms = _parse_time_range(begin, end)
    with run.session("replay") as (session, on_phase):
        from dledger_spark import jobs

        result = jobs.replay(
            session,
            namesrv=run.namesrv,
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
            bad_records=bad_records,
            on_phase=on_phase,
        )
    emit(result, run.output, tables.replay)
