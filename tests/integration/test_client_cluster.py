"""The client keeps its promises over failovers, restarts and rebalances of a cluster of real processes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from cluster_checks import assert_offsets_unique_and_dense, read_topic
from commands import until

from dledger_client import Admin, MessageQueue, OrderlyConsumer, Producer, PushConsumer, ReceivedMessage, SendError
from dledger_client.testing import LocalCluster, local_cluster_fixture

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.py")
    if path.stem in {"producer", "consumer", "ordered", "sync_client", "request_reply", "traced"}
)

PROJECT_README = Path(__file__).parents[2] / "README.md"
CLIENT_README = Path(__file__).parents[2] / "client" / "README.md"

cluster = local_cluster_fixture(scope="module")


async def read_all(cluster: LocalCluster, topic: str) -> dict[int, list[str]]:
    """Return every stored body by queue, in the order of the offsets."""
    messages = await read_topic(cluster.namesrv, topic)
    assert_offsets_unique_and_dense(messages)
    bodies: dict[int, list[str]] = {}
    for message in messages:
        bodies.setdefault(message.queue_id, []).append(message.body.decode())
    return bodies


def queues_of(consumer: PushConsumer | OrderlyConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment)


class Load:
    """Sends from many tasks until the load stops, with the acknowledged messages and those that may be stored twice."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.acknowledged: list[str] = []
        self.unknown: list[str] = []
        self.progress = asyncio.Event()
        self._producer = producer
        self._topic = topic
        self._stopped = False

    async def send(self, sender: int) -> None:
        number = 0
        while not self._stopped:
            body = f"{sender}-{number}"
            number += 1
            try:
                await self._producer.send(self._topic, body.encode())
                self.acknowledged.append(body)
            except SendError as error:
                if error.outcome != "unknown":
                    raise
                self.unknown.append(body)
            self.progress.set()

    async def more(self, count: int) -> None:
        """Wait for this many further acknowledgements."""
        target = len(self.acknowledged) + count
        async with asyncio.timeout(20):
            while len(self.acknowledged) < target:
                self.progress.clear()
                await self.progress.wait()

    def stop(self) -> None:
        self._stopped = True


async def test_order_per_key_holds_over_a_killed_leader(cluster: LocalCluster, topic: str):
    under_way = asyncio.Event()
    async with Producer(cluster.namesrv, timeout=20) as producer:

        async def send(key: int) -> None:
            for number in range(150):
                await producer.send(topic, b"%d-%d" % (key, number), ordering_key=str(key))
                if number == 10:
                    under_way.set()

        senders = [asyncio.create_task(send(key)) for key in range(8)]
        async with asyncio.timeout(20):
            await under_way.wait()
        await asyncio.to_thread(cluster.kill_leader)
        await asyncio.gather(*senders)
    for bodies in (await read_all(cluster, topic)).values():
        for key in {body.partition("-")[0] for body in bodies}:
            numbers = [int(body.partition("-")[2]) for body in bodies if body.startswith(f"{key}-")]
            assert list(dict.fromkeys(numbers)) == list(range(150))
            assert numbers == sorted(numbers)


async def test_two_ordered_consumers_handle_each_queue_in_order_and_alone_over_a_killed_leader(
    cluster: LocalCluster, topic: str
):
    messages = 200
    at_work: set[MessageQueue] = set()
    together: list[MessageQueue] = []
    by_second: list[MessageQueue] = []
    handled: dict[MessageQueue, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        if message.queue in at_work:
            together.append(message.queue)
        at_work.add(message.queue)
        await asyncio.sleep(0.005)
        at_work.discard(message.queue)
        handled[message.queue].append(message.queue_offset)

    async def handle_by_second(message: ReceivedMessage) -> None:
        by_second.append(message.queue)
        await handle(message)

    def done() -> int:
        return sum(len(set(offsets)) for offsets in handled.values())

    async with (
        Producer(cluster.namesrv, timeout=20) as producer,
        OrderlyConsumer(cluster.namesrv, f"{topic}-members", topic, handle),
    ):
        await asyncio.gather(*(producer.send(topic, b"%d" % n, ordering_key=str(n % 16)) for n in range(messages)))
        async with OrderlyConsumer(cluster.namesrv, f"{topic}-members", topic, handle_by_second) as second:
            await until(lambda: queues_of(second, topic) == 2)
            await asyncio.to_thread(cluster.kill_leader)
            await asyncio.gather(*(producer.send(topic, b"%d" % n, ordering_key=str(n % 16)) for n in range(messages)))
            await until(lambda: done() == 2 * messages, 60)
    assert (together, bool(by_second)) == ([], True)
    for offsets in handled.values():
        assert list(dict.fromkeys(offsets)) == sorted(set(offsets))


async def test_a_consumer_neither_loses_nor_repeats_a_message_over_a_killed_leader(cluster: LocalCluster, topic: str):
    seen: list[tuple[int, int]] = []
    async with Producer(cluster.namesrv) as producer, PushConsumer(cluster.namesrv, "CG-kill", topic) as consumer:

        async def read() -> None:
            async for message in consumer:
                seen.append((message.queue_id, message.queue_offset))  # noqa: PERF401 - others read the list as it grows

        reader = asyncio.create_task(read())
        load = Load(producer, topic)
        senders = [asyncio.create_task(load.send(sender)) for sender in range(4)]
        await load.more(200)
        await asyncio.to_thread(cluster.kill_leader)
        await load.more(200)
        load.stop()
        await asyncio.gather(*senders)
        async with Admin(cluster.namesrv) as admin:
            expected = sum(status.end for status in await admin.offsets("CG-kill", topic))
        await until(lambda: len(seen) >= expected)
    await reader
    assert len(seen) == len(set(seen)) == expected


def run_example(path: Path, *arguments: str) -> str:
    """Run a program that must succeed, and return its output."""
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(cluster: LocalCluster, path: Path):
    assert "OUT OF ORDER" not in run_example(path, cluster.namesrv)


def test_the_transactions_example_shows_committed_orders_and_a_check(cluster: LocalCluster):
    told = run_example(EXAMPLES[0].with_name("transactions.py"), cluster.namesrv).splitlines()
    assert "order-3: asked by a broker, commit" in told
    assert told[-1] == "consumers saw order-1, order-3"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("delayed", ["the dentist called: taken back", "stand up", "go home"]),
        ("retries", ["delivered a parcel at try 3"]),
        ("simple_consumer", ["first: took a job", "second: took a job, at try 2", "second: done"]),
        ("filtered_consumer", ["received eu 200", "received eu 500"]),
        ("broadcast", ["one: first", "two: first", "one: second"]),
        ("strategies", ["even: of queue 0, of queue 2", "odd: of queue 1, of queue 3"]),
        ("priorities", ["a fire", "a wish", "a question"]),
        (
            "flow_control",
            [
                *["10 images are in work, no more are read: True"] * 4,
                "stopped by the limit of bytes: True",
                "paused: example-images/broker-a/0",
            ],
        ),
        (
            "pull_consumer",
            ["['reading 0', 'reading 1']", "committed: 2", "['reading 2', 'reading 3']", "['reading 3']"],
        ),
        (
            "resets",
            ["read one, two", "read again one, two", "skipped three, read four", "another group went on with five"],
        ),
        (
            "namespaces",
            [
                "north: a bill of north from example-bills, for brokers north%example-bills",
                "south: a bill of south from example-bills, for brokers south%example-bills",
            ],
        ),
    ],
)
def test_the_consuming_examples_print_the_expected_lines(cluster: LocalCluster, name: str, expected: list[str]):
    assert run_example(EXAMPLES[0].with_name(f"{name}.py"), cluster.namesrv).splitlines() == expected


@pytest.mark.parametrize(
    ("page", "printed"),
    [(CLIENT_README, r"b'hello'\n"), (PROJECT_README, r"stored as [0-9A-F]+ in queue \d+ at offset 0\nhello\n")],
    ids=["component", "project"],
)
def test_the_example_in_a_readme_runs(cluster: LocalCluster, tmp_path: Path, page: Path, printed: str):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "dledger_client" in block]
    program = tmp_path / "example.py"
    program.write_text(example.replace("127.0.0.1:9876", cluster.namesrv))
    assert re.fullmatch(printed, run_example(program))


async def test_a_terminated_consume_command_has_committed_the_printed_messages(cluster):
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic("Terminated", queues=1)
        async with Producer(cluster.namesrv) as producer:
            await producer.send_batch("Terminated", [b"%d" % number for number in range(5)])
        command = [sys.executable, "-m", "dledger_admin", "consume", "--namesrv", cluster.namesrv]
        options = ["--topic", "Terminated", "--group", "Terminated", "--from-beginning"]
        process = await asyncio.create_subprocess_exec(*command, *options, stdout=subprocess.PIPE)
        async with asyncio.timeout(30):
            assert [await process.stdout.readline() for _ in range(5)] == [b"%d\n" % number for number in range(5)]
            process.terminate()
            assert await process.wait() == 0
        [status] = await admin.offsets("Terminated", "Terminated")
        assert status.committed == 5
