"""Loads of the generator in Go, on a service for which it has a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.generator import LoadResult, run_generator
from bench.peers.rows import BACKLOG_TOPIC, BODY_BYTES, QUEUES, RATE_PER_S, TOPIC, Row
from bench.peers.service import Edges, Timing

READY_S: Final = 90.0
FILL_S: Final = 300.0
_FILL_WINDOW: Final = 512
_SPARE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class GoLoad:
    """The generator, and the nodes to which it connects.

    `batches` says that the service takes several messages in one request. Otherwise the client gathers messages in
    flight into requests by itself, and a row with batches keeps as many messages in flight.
    """

    program: Path
    service: str
    addresses: Sequence[str]
    batches: bool

    def prepare(self, topic: str = TOPIC) -> None:
        """Create a topic, and wait until a message to it is acknowledged. Raises `GeneratorError`."""
        self._run("prepare", topic, {"patience": READY_S}, READY_S)

    def fill(self, messages: int) -> LoadResult:
        """Send `messages` messages to a topic of their own. Raises `GeneratorError`."""
        self.prepare(BACKLOG_TOPIC)
        options = {"window": _FILL_WINDOW, "connections": QUEUES, "messages": messages, "seconds": FILL_S}
        return self._run("send", BACKLOG_TOPIC, options, FILL_S)

    def measure(self, row: Row, timing: Timing, edges: Edges | None = None) -> LoadResult:
        """Run one row. Raises `GeneratorError`."""
        options: dict[str, float] = {
            "seconds": timing.seconds,
            "warmup": timing.warmup_s,
            "connections": row.connections,
        }
        if row.mode == "pull":
            options["messages"] = timing.backlog
        elif row.mode == "latency":
            options["rate"] = RATE_PER_S
        elif self.batches:
            options |= {"window": row.requests, "batch": row.batch}
        else:
            options["window"] = row.requests * row.batch
        return self._run(row.mode, row.topic, options, timing.seconds + timing.warmup_s, edges)

    def _run(
        self, mode: str, topic: str, options: dict[str, float], seconds: float, edges: Edges | None = None
    ) -> LoadResult:
        all_options: dict[str, object] = {
            "service": self.service, "mode": mode, "addresses": ",".join(self.addresses), "topic": topic,
            "partitions": QUEUES, "body": BODY_BYTES, **options,
        }  # fmt: skip
        return run_generator(
            [str(self.program), *(f"--{name}={value}" for name, value in all_options.items())],
            on_start=edges.begin if edges else None,
            on_end=edges.end if edges else None,
            timeout_s=seconds + _SPARE_S,
        )
