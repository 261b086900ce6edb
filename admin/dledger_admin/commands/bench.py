"""`dledger bench`: sends, reads and whole ways of messages, measured with one client."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from ..help import HelpGroup
from ..operations.benchmarks import MIN_BYTES, BenchResult, Kind, Plan
from ..operations.benchmarks import run as run_bench
from ..operations.latencies import Latencies
from ..output import emit, output_option
from ..progress import Progress
from ..signals import ending_signals
from .client_calls import REGISTRATION_SECONDS, run
from .names import TOPIC
from .options import FiniteFloat, namesrv_option
from .signing import command_access

DEFAULT_MESSAGES: Final = 20_000
_MAX_BYTES: Final = 4 << 20
_BAR_CHARS: Final = 40
_FAILED: Final = 1

_COMMON: Final = (
    namesrv_option,
    click.option("--topic", type=TOPIC, help="Topic that exists; it is kept.  [default: one that is made and deleted]"),
    click.option(
        "--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Queues of the topic that is made."
    ),
    click.option(
        "--messages",
        type=click.IntRange(min=1),
        help=f"Number of messages.  [default: {DEFAULT_MESSAGES:,}; as many as --seconds allow, or as --topic has]",
    ),
    click.option("--seconds", type=FiniteFloat(min=0.1), metavar="S", help="Stop after this time."),
    click.option(
        "--size",
        type=click.IntRange(MIN_BYTES, _MAX_BYTES),
        default=1024,
        show_default=True,
        metavar="BYTES",
        help="Size of a body. The bodies are random: compression gains nothing.",
    ),
    click.option("--keep", is_flag=True, help="Keep the topic that is made."),
    output_option,
)
_LOAD: Final = (
    click.option("--rate", type=FiniteFloat(min=0.1), metavar="N", help="Messages a second.  [default: no limit]"),
    click.option(
        "--concurrency", type=click.IntRange(1, 4096), default=64, show_default=True, help="Requests under way."
    ),
    click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Messages in a request."),
)


@click.group(cls=HelpGroup)
def bench() -> None:
    """Measure a cluster with one client. A topic of its own is deleted at the end."""


def _with_options(*options: Callable[..., Callable[..., None]]) -> Callable[..., Callable[..., None]]:
    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@bench.command()
@_with_options(*_COMMON, *_LOAD)
@click.pass_context
def send(ctx: click.Context, /, namesrv: str, output: str, **plan: object) -> None:
    """Measure sends: how many a second, and how long each request takes until a majority has stored it."""
    _measure(ctx, namesrv, output, "send", plan)


@bench.command()
@_with_options(*_COMMON)
@click.pass_context
def consume(ctx: click.Context, /, namesrv: str, output: str, **plan: object) -> None:
    """Measure reads of messages that are there. No offset is committed.

    In a topic of its own the messages are stored first, which is not measured. With --topic it reads from the first
    message on, up to the end.
    """
    _measure(ctx, namesrv, output, "consume", plan)


@bench.command("end-to-end")
@_with_options(*_COMMON, *_LOAD)
@click.pass_context
def end_to_end(ctx: click.Context, /, namesrv: str, output: str, **plan: object) -> None:
    """Measure the way of each message: from its send until a reader beside it has the message.

    Give --rate: without it the messages wait for each other in the client.
    """
    _measure(ctx, namesrv, output, "end-to-end", plan)


def _measure(ctx: click.Context, namesrv: str, output: str, kind: Kind, options: dict[str, object]) -> None:
    size, topic = options.pop("size"), options.pop("topic") or ""
    reads_all = kind == "consume" and topic
    if options["messages"] is None and options["seconds"] is None and not reads_all:
        options["messages"] = DEFAULT_MESSAGES
    plan = Plan(kind=kind, body_bytes=size, topic=topic, **options)  # type: ignore[arg-type]  # click has checked them
    access = command_access(namesrv)
    progress = Progress()
    with _ended_like_ctrl_c():
        result = run(lambda: run_bench(access, plan, progress.tell), namesrv, patience_s=REGISTRATION_SECONDS)
    emit(result, output, render)
    ctx.exit(0 if result.is_complete else _FAILED)


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let every signal that ends the command cancel it, so that the topic is deleted.

    A shell starts programs in the background with SIGINT ignored. `asyncio` would then not cancel anything.
    """

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        signal.raise_signal(signal.SIGINT)

    handlers = dict.fromkeys(ending_signals(), interrupt) | {signal.SIGINT: signal.default_int_handler}
    former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def render(result: BenchResult) -> str:
    """Return the figures and the histogram for people."""
    what = {"send": "sent", "consume": "read", "end-to-end": "sent and read"}[result.kind]
    of = {"send": "a send", "consume": "a read", "end-to-end": "a message, from its send to its reader"}[result.kind]
    rates = f"{result.messages_per_s:,.0f} messages and {result.bytes_per_s / 1e6:,.1f} MB a second"
    lines = [
        f"{result.messages:,} messages of {result.body_bytes:,} bytes {what} in {result.seconds:.2f} s: {rates}",
        *_render_latency(f"latency of {of}", result.latency),
    ]
    if result.failed:
        lines.append(f"{result.failed:,} messages were not acknowledged; the first error: {result.error}")
    if result.missing:
        lines.append(f"{result.missing:,} acknowledged messages were not read in time")
    if result.kept:
        lines.append(f"topic {result.topic} is kept")
    return "\n".join(lines)


def _render_latency(title: str, latency: Latencies) -> list[str]:
    if not latency.count:
        return []
    shares = (
        ("mean", latency.mean_ms),
        ("50 %", latency.p50_ms),
        ("90 %", latency.p90_ms),
        ("99 %", latency.p99_ms),
        ("99.9 %", latency.p999_ms),
        ("maximum", latency.max_ms),
    )
    most = max(bar.count for bar in latency.bars)
    edges = [f"< {bar.below_ms:g} ms" if bar.below_ms is not None else "longer" for bar in latency.bars]
    width = max(map(len, edges))
    bars = [
        f"  {edge.rjust(width)}  {bar.count:>9,}  {'#' * -(-bar.count * _BAR_CHARS // most)}".rstrip()
        for edge, bar in zip(edges, latency.bars, strict=True)
    ]
    return [f"{title}: " + ", ".join(f"{name} {value:.2f} ms" for name, value in shares), *bars]
