"""The client against a cluster of real processes: what it promises over failovers, restarts and rebalances."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_checks import assert_offsets_unique_and_dense, read_topic

from dledger_client import (
    Admin,
    MessageQueue,
    NotFoundError,
    OrderlyConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendError,
    Sql,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.py")
    if path.stem in {"producer", "consumer", "ordered", "sync_client", "request_reply", "traced"}
)

PROJECT_README = Path(__file__).parents[2] / "README.md"
CLIENT_README = Path(__file__).parents[2] / "client" / "README.md"

cluster = local_cluster_fixture(scope="module")


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest):
    """A topic of the test's own, on a cluster of which every node runs."""
    for node_id in cluster.node_ids:
        if cluster.pid(node_id) is None:
            await asyncio.to_thread(cluster.restart, node_id)
    await asyncio.to_thread(cluster.wait_ready)
    name = request.node.originalname.removeprefix("test_")[:100]
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(name, queues=4)
    return name


async def read_all(cluster: LocalCluster, topic: str) -> dict[int, list[str]]:
    """Every stored body by queue, in the order of the offsets."""
    messages = await read_topic(cluster.namesrv, topic)
    assert_offsets_unique_and_dense(messages)
    bodies: dict[int, list[str]] = {}
    for message in messages:
        bodies.setdefault(message.queue_id, []).append(message.body.decode())
    return bodies


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for what has no event of its own."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


def queues_of(consumer: PushConsumer | OrderlyConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment)


class Load:
    """Sends from many tasks until it is told to stop; knows what was acknowledged and what may be stored twice."""

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


async def test_a_message_goes_through_unchanged(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv) as producer, PushConsumer(cluster.namesrv, "CG-through", topic) as consumer:
        sent = await producer.send(topic, b"x" * 10_000, key=["a", "b"], tags="red", properties={"colour": "deep"})
        async with asyncio.timeout(20):
            message = await anext(consumer)
        assert (message.body, message.keys, message.tags) == (b"x" * 10_000, ("a", "b"), "red")
        assert message.properties["colour"] == "deep"
        assert (message.queue_offset, message.offset_message_id) == (sent.queue_offset, sent.offset_message_id)
        async with Admin(cluster.namesrv) as admin:
            assert (await admin.message_by_id(sent.offset_message_id)).message_id == sent.message_id
            assert [found.body for found in await admin.messages_by_key(topic, "b")] == [message.body]
            with pytest.raises(NotFoundError):
                await admin.message_by_id(sent.offset_message_id[:-16] + "F" * 8 + "0" * 8)


async def test_consumers_get_what_their_expression_in_sql_is_true_of(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv) as producer:
        for amount in range(40):
            await producer.send(topic, b"%d" % amount, tags="red", properties={"amount": str(amount)})
    wanted = {b"%d" % amount for amount in range(31, 40)}
    expression = "amount > 30 AND TAGS = 'red'"
    async with PushConsumer(cluster.namesrv, "CG-sql", {topic: Sql(expression)}) as consumer:
        found: set[bytes] = set()
        async with asyncio.timeout(30):
            async for message in consumer:
                assert message.body in wanted - found
                found.add(message.body)
                message.ack()
                if found == wanted:
                    break
    async with PullConsumer(cluster.namesrv, filter=Sql(f"NOT ({expression})")) as reader:
        await reader.assign(await reader.queues(topic))
        await reader.seek_to_begin()
        others: set[bytes] = set()
        while len(others) < 31 and (messages := await reader.poll(timeout=10)):
            others |= {message.body for message in messages}
    assert others == {b"%d" % amount for amount in range(31)}


async def test_no_acknowledged_message_is_lost_when_leaders_are_killed(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv) as producer:
        load = Load(producer, topic)
        senders = [asyncio.create_task(load.send(sender)) for sender in range(16)]
        for _ in range(2):
            await load.more(200)
            killed = await asyncio.to_thread(cluster.kill_leader)
            await load.more(200)
            await asyncio.to_thread(cluster.restart, killed)
        load.stop()
        await asyncio.gather(*senders)
    stored = Counter(body for bodies in (await read_all(cluster, topic)).values() for body in bodies)
    assert set(load.acknowledged) <= set(stored)
    assert set(stored) <= set(load.acknowledged) | set(load.unknown)
    repeated = sum(count - 1 for count in stored.values())
    assert repeated <= 2 * 16, "only what was under way at a kill may be stored twice"


async def test_at_most_once_never_stores_a_message_twice(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv, retry_unknown=False) as producer:
        load = Load(producer, topic)
        senders = [asyncio.create_task(load.send(sender)) for sender in range(16)]
        await load.more(200)
        killed = await asyncio.to_thread(cluster.kill_leader)
        await load.more(200)
        load.stop()
        await asyncio.gather(*senders)
    await asyncio.to_thread(cluster.restart, killed)
    stored = Counter(body for bodies in (await read_all(cluster, topic)).values() for body in bodies)
    assert set(load.acknowledged) <= set(stored)
    assert max(stored.values()) == 1


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


async def test_a_paused_leader_is_left_for_its_successor(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv) as producer:
        load = Load(producer, topic)
        senders = [asyncio.create_task(load.send(sender)) for sender in range(4)]
        await load.more(50)
        paused = await asyncio.to_thread(cluster.leader)
        cluster.pause(paused)
        try:
            await load.more(50)
        finally:
            cluster.resume(paused)
        load.stop()
        await asyncio.gather(*senders)
    stored = {body for bodies in (await read_all(cluster, topic)).values() for body in bodies}
    assert set(load.acknowledged) <= stored


async def test_a_consumer_neither_loses_nor_repeats_a_message_over_a_killed_leader(cluster: LocalCluster, topic: str):
    seen: list[tuple[int, int]] = []
    async with Producer(cluster.namesrv) as producer, PushConsumer(cluster.namesrv, "CG-kill", topic) as consumer:

        async def read() -> None:
            async for message in consumer:
                seen.append((message.queue_id, message.queue_offset))  # noqa: PERF401 - seen while it grows

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


async def test_two_members_share_a_topic_and_the_rest_goes_to_the_one_that_stays(cluster: LocalCluster, topic: str):
    seen: list[tuple[int, int]] = []
    grown = asyncio.Event()

    async def handler(message) -> None:
        seen.append((message.queue_id, message.queue_offset))
        grown.set()

    async def received(count: int) -> None:
        async with asyncio.timeout(30):
            while len(seen) < count:
                grown.clear()
                await grown.wait()

    async with Producer(cluster.namesrv) as producer, PushConsumer(cluster.namesrv, "CG-two", topic, handler) as first:
        async with PushConsumer(cluster.namesrv, "CG-two", topic, handler) as second:
            await until(lambda: [queues_of(member, topic) for member in (first, second)] == [2, 2])
            assert not first.assignment & second.assignment
            for _ in range(200):
                await producer.send(topic, b"x")
            await received(200)
        for _ in range(200):
            await producer.send(topic, b"y")
        await received(400)
    assert len(seen) == len(set(seen)) == 400


async def test_a_consumer_goes_on_where_its_predecessor_stopped(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(100)))
    seen: list[bytes] = []
    for _ in range(2):
        async with PushConsumer(cluster.namesrv, "CG-resume", topic) as consumer:
            async for message in consumer:
                seen.append(message.body)
                if len(seen) % 50 == 0:
                    message.ack()
                    break
    assert len(seen) == len(set(seen)) == 100


async def test_a_failed_message_comes_back(cluster: LocalCluster, topic: str):
    deliveries: list[int] = []
    finished = asyncio.Event()

    async def handler(message) -> None:
        deliveries.append(message.reconsume_times)
        if len(deliveries) < 3:
            raise ValueError("not yet")
        finished.set()

    async with Producer(cluster.namesrv) as producer:
        await producer.send(topic, b"x")
    async with PushConsumer(cluster.namesrv, "CG-retry", topic, handler):
        async with asyncio.timeout(90):  # the broker delays the first two retries by 10 and 30 s
            await finished.wait()
    assert deliveries == [0, 1, 2]


async def test_everything_goes_on_after_all_nodes_were_killed_at_once(cluster: LocalCluster, topic: str):
    async with Producer(cluster.namesrv, timeout=30) as producer:
        before = [(await producer.send(topic, b"%d" % number)) for number in range(100)]
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.kill, node_id)
        after = asyncio.create_task(producer.send(topic, b"after"))
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.restart, node_id)
        await after
    stored = await read_all(cluster, topic)
    assert sum(map(len, stored.values())) == len(before) + 1


def test_the_blocking_client_needs_no_event_loop(cluster: LocalCluster):
    with SyncAdmin(cluster.namesrv) as admin, SyncProducer(cluster.namesrv) as producer:
        admin.create_topic("blocking", queues=1)
        producer.send_batch("blocking", [b"%d" % number for number in range(50)])
        with SyncConsumer(cluster.namesrv, "CG-blocking", "blocking") as consumer:
            messages = [next(consumer) for _ in range(50)]
            messages[-1].ack()
        bodies = [message.body for message in messages]
        assert bodies == [b"%d" % number for number in range(50)]
        assert [status.lag for status in admin.offsets("CG-blocking", "blocking")] == [0]


def run_example(path: Path, *arguments: str) -> str:
    """What a program prints that ends well."""
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


def test_the_example_of_transactions_tells_of_what_was_placed(cluster: LocalCluster):
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
            [
                "read one, two",
                "read again one, two",
                "skipped three, read four",
                "another group went on with five",
            ],
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
def test_the_examples_of_ways_of_consuming_tell_of_them(cluster: LocalCluster, name: str, expected: list[str]):
    assert run_example(EXAMPLES[0].with_name(f"{name}.py"), cluster.namesrv).splitlines() == expected


def test_the_example_in_the_components_readme_runs(cluster: LocalCluster, tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", CLIENT_README.read_text("utf-8"), re.DOTALL)
    program = tmp_path / "example.py"
    program.write_text(example.replace("127.0.0.1:9876", cluster.namesrv))
    assert run_example(program) == "b'hello'\n"


def test_the_example_in_the_projects_readme_runs(cluster: LocalCluster, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", PROJECT_README.read_text("utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "dledger_client" in block]
    program = tmp_path / "example.py"
    program.write_text(example.replace("127.0.0.1:9876", cluster.namesrv))
    stored, received = run_example(program).splitlines()
    assert re.fullmatch(r"stored as [0-9A-F]+ in queue \d+ at offset 0", stored)
    assert received == "hello"


async def test_a_consume_command_that_is_terminated_has_committed_what_it_printed(cluster):
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
