"""Runner of the generator whose consumers wait at the end of a queue (`tail.c`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.generator import LoadResult, run_generator

_SPARE_S = 60.0


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Load with waiting consumers: `rate_per_s` messages a second go to the queues in turn.

    Each of `consumers` waits at one queue's end with a long poll.
    """

    rate_per_s: int
    consumers: int
    queues: int = 4
    body_bytes: int = 1024


def run_tail(
    program: Path,
    tail: Tail,
    *,
    port: int,
    topic: str,
    seconds: float,
    warmup_s: float = 0.0,
    on_start: Callable[[], None] | None = None,
    on_end: Callable[[], None] | None = None,
) -> LoadResult:
    """Run the load. Each receipt counts as a message of the result, and its latency is the time since it was due.

    The topic must exist. Raises `GeneratorError` as `run_load` does.
    """
    arguments = {
        "port": port,
        "topic": topic,
        "rate": tail.rate_per_s,
        "consumers": tail.consumers,
        "queues": tail.queues,
        "body": tail.body_bytes,
        "seconds": seconds,
        "warmup": warmup_s,
    }
    command = [str(program), *(f"--{name}={value}" for name, value in arguments.items())]
    return run_generator(command, on_start=on_start, on_end=on_end, timeout_s=seconds + warmup_s + _SPARE_S)
