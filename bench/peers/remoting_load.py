"""Loads of the generators in C, on a service that uses RocketMQ's protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bench.compiler import TAIL_SOURCE, NoCompilerError, build_generator
from bench.generator import GeneratorError, Load, LoadResult, run_load
from bench.peers.rows import BACKLOG_TOPIC, BODY_BYTES, QUEUES, RATE_PER_S, TOPIC, Row
from bench.peers.service import CannotRunError, Edges, Timing
from bench.tailing import Tail, run_tail

PER_PULL = 32
_FILL = Load(connections=QUEUES, window=8, batch=32, body_bytes=BODY_BYTES, queues=QUEUES)
_FILL_S = 300.0
_POLL_S = 0.05
_READY = Load(window=1, body_bytes=BODY_BYTES, queues=QUEUES)


@dataclass(frozen=True, slots=True)
class RemotingLoad:
    """The compiled generators, and the port of the broker that takes sends."""

    generator: Path
    tail: Path
    port: int

    def await_send(self, timeout_s: float) -> None:
        """Wait until a message is acknowledged, which also creates the topic. Raises `GeneratorError`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                run_load(self.generator, _READY, port=self.port, topic=TOPIC, seconds=1.0, messages=1)
            except GeneratorError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def fill(self, messages: int) -> None:
        """Send `messages` messages to a topic of their own. Raises `GeneratorError`."""
        run_load(self.generator, _FILL, port=self.port, topic=BACKLOG_TOPIC, seconds=_FILL_S, messages=messages)

    def measure(self, row: Row, timing: Timing, edges: Edges) -> LoadResult:
        """Run one row. Raises `GeneratorError`."""
        if row.mode == "latency":
            return run_tail(
                self.tail,
                Tail(rate_per_s=RATE_PER_S, consumers=QUEUES, queues=QUEUES, body_bytes=BODY_BYTES),
                port=self.port,
                topic=TOPIC,
                seconds=timing.seconds,
                warmup_s=timing.warmup_s,
                on_start=edges.begin,
                on_end=edges.end,
            )
        load = Load(
            mode=row.mode,
            connections=row.connections,
            window=row.requests,
            batch=row.batch,
            body_bytes=BODY_BYTES,
            queues=QUEUES,
            messages_per_pull=PER_PULL,
        )
        return run_load(
            self.generator,
            load,
            port=self.port,
            topic=row.topic,
            seconds=timing.seconds,
            warmup_s=timing.warmup_s,
            on_start=edges.begin,
            on_end=edges.end,
        )


def build_generators() -> tuple[Path, Path]:
    """Compile both generators. Raises `CannotRunError`."""
    try:
        return build_generator(), build_generator(source=TAIL_SOURCE)
    except NoCompilerError as error:
        raise CannotRunError(str(error)) from error
