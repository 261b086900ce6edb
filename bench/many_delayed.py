"""Measure of very many delayed messages: their cost for a node while they wait, its start, and their delivery.

    .venv/bin/python -m bench.many_delayed [MESSAGES]

One node alone writes the messages itself, many in a unit, because sending ten million would take longer than all the
rest. Another process then starts with them, waits until all are due, in the same minute, and delivers them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.usage import anonymous_rss_mb
from dledger.errors import LogError
from dledger_broker.config import load_config
from dledger_broker.features.delay.asked import Due
from dledger_broker.features.delay.commands import added_rows
from dledger_broker.features.delay.messages import NAME
from dledger_broker.features.delay.records import due_topic, waiting
from dledger_broker.kernel.units import NewRecord, Stored, UnitOutcome
from dledger_broker.node import Broker
from dledger_client.testing.ports import find_base_port
from dledger_remoting.topics import TopicConfig

TOPIC: Final = "delayed"
QUEUES: Final = 8
BODY: Final = b"x" * 100
BORN_HOST: Final = bytes([127, 0, 0, 1, 0, 0, 0, 9])
ROWS: Final = 2_000
"""Number of messages in one unit."""
SPREAD_MS: Final = 60_000
PREPARED_PER_S: Final = 12_000
"""Assumed rate at which messages are prepared, a second.

They are due once all are prepared and the node has started.
"""


async def prepare(config_file: Path, count: int, first_due_ms: int) -> None:
    """Found a group of one node with `count` delayed messages, and stop it."""
    broker = Broker(load_config(config_file), bootstrap=True)
    await broker.start()
    machine, writer = broker.machine, broker.service.writer
    while not (machine.leadership.ready and machine.is_active(NAME)):  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.05)
    for topic in (due_topic(0, 18), TopicConfig(TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES)):
        created: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()
        machine.proposals.ensure_topic(topic, created.set_result)
        await created
    under_way = asyncio.Semaphore(4)

    def stored(outcome: UnitOutcome) -> None:
        if not isinstance(outcome, Stored):
            raise RuntimeError("a unit was not stored")
        under_way.release()

    for first in range(0, count, ROWS):
        await under_way.acquire()
        dues = [first_due_ms + number * SPREAD_MS // count for number in range(first, min(first + ROWS, count))]
        records = [waiting(_message(number, due), Due(due, 0)) for number, due in enumerate(dues, first)]
        rows = added_rows([(due, record.size) for due, record in zip(dues, records, strict=True)])
        writer.write(records, (rows,), done=stored)
    await broker.stop()


def _message(number: int, due_ms: int) -> NewRecord:
    properties = f"UNIQ_KEY\x01{number:032X}\x02TIMER_DELIVER_MS\x01{due_ms}\x02".encode()
    queue_id = number % QUEUES
    return NewRecord(
        topic=TOPIC, queue_id=queue_id, body=BODY, properties=properties, born_ms=due_ms, born_host=BORN_HOST
    )


@contextmanager
def running(config_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node as a process while the block runs."""
    command = [sys.executable, "-m", "dledger_broker", "--config", str(config_file)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


def metric(port: int, name: str) -> float | None:
    """Return a number from the node's metrics; None while it does not answer."""
    with suppress(OSError):
        with urllib.request.urlopen(f"http://127.0.0.1:{port + 2}/metrics", timeout=5.0) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"dledger_broker_{name}{{"):
                    return float(line.split()[-1])
    return None


def hold_and_fire(config_file: Path, port: int, count: int, first_due_ms: int) -> None:
    """Start the node, measure it while it holds the messages, then while it delivers them."""
    began = time.monotonic()
    with running(config_file) as process:
        while metric(port, "timers_pending") != count:
            time.sleep(0.02)
        print(f"started with all of them after {time.monotonic() - began:.2f} s", flush=True)
        while metric(port, "time_index_lag_bytes"):
            time.sleep(0.05)
        print(f"knew the first ones after {time.monotonic() - began:.2f} s", flush=True)
        time.sleep(max(0.0, first_due_ms / 1000 - time.time() - 1.0))
        print(f"memory while they wait: {anonymous_rss_mb(process.pid):.0f} MB", flush=True)
        time.sleep(max(0.0, first_due_ms / 1000 - time.time()))
        began, highest = time.monotonic(), 0.0
        while pending := metric(port, "timers_pending"):
            highest = max(highest, anonymous_rss_mb(process.pid))
            time.sleep(1.0)
            print(f"\r{pending:.0f} left ", end="", flush=True)
        took = time.monotonic() - began
        print(f"\rdelivered in {took:.0f} s, {count / took:,.0f}/s; memory: {highest:.0f} MB", flush=True)


def main(arguments: list[str]) -> None:
    """Prepare the messages in a process of its own, then measure another one."""
    count = int(arguments[0]) if arguments else 10_000_000
    if len(arguments) > 1:
        asyncio.run(prepare(Path(arguments[1]), count, int(arguments[2])))
        return
    with tempfile.TemporaryDirectory() as directory:
        port, config_file = find_base_port(1, 1), Path(directory, "node.toml")
        config_file.write_text(
            f'broker_group = "g"\nnode_id = "n0"\ndata_dir = "{directory}/data"\nport = {port}\n'
            f"retention_hours = 1000\nmax_pending_timers = {count}\n"
        )
        first_due_ms = int((time.time() + 30 + count / PREPARED_PER_S) * 1000)
        began = time.monotonic()
        command = [sys.executable, "-m", "bench.many_delayed", str(count), str(config_file), str(first_due_ms)]
        subprocess.run(command, check=True)
        print(f"{count} messages written in {time.monotonic() - began:.0f} s", flush=True)
        if time.time() * 1000 > first_due_ms - 10_000:
            sys.exit("preparing them took longer than they wait: this machine is too busy")
        hold_and_fire(config_file, port, count, first_due_ms)


if __name__ == "__main__":
    main(sys.argv[1:])
