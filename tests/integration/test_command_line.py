"""The `dledger` command against a cluster of real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from dledger_client import Admin, Producer, PushConsumer
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture(scope="module")


def dledger(cluster: LocalCluster, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dledger_admin", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DLEDGER_NAMESRV": cluster.namesrv},
    )


@pytest.fixture
async def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = request.node.originalname.removeprefix("test_")[:100]
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(name, queues=4)
    return name


async def test_a_group_whose_members_read_tells_who_they_are_is_reset_and_not_deleted(cluster, topic):
    async with Producer(cluster.namesrv) as producer:
        await producer.send_batch(topic, [b"1", b"2", b"3", b"4"])
    group = ("group", "describe", "live", "--topic", topic)
    async with PushConsumer(cluster.namesrv, "live", {topic: "*"}, start_from="first", client_id="reader-7") as reader:
        for _ in range(4):
            (await anext(reader)).ack()
        refused = dledger(cluster, "group", "delete", "live")
        assert refused.returncode == 1
        assert "has 1 member, stop them first: reader-7 (127.0.0.1:" in refused.stderr
        assert dledger(cluster, "group", "reset", "live", "--topic", topic, "--to", "first").returncode == 0
        for _ in range(4):
            (await anext(reader)).ack()
        shown = json.loads(dledger(cluster, *group, "-o", "json").stdout)
        assert shown["state"] == "stable"
        assert [one["subscriptions"][topic] for one in shown["members"]] == ["*"]
        assert [one["readers"] for one in shown["queues"]] == [["reader-7"]] * 4
    assert dledger(cluster, "group", "reset", "live", "--topic", topic, "--to", "first").returncode == 0
    shown = json.loads(dledger(cluster, *group, "-o", "json").stdout)
    assert (shown["state"], shown["lag"], shown["members"]) == ("empty", 4, [])
    assert [one["committed"] for one in shown["queues"]] == [0] * 4
    lines = {one["group"]: one for one in json.loads(dledger(cluster, "group", "list", "-o", "json").stdout)}
    assert (lines["live"]["state"], lines["live"]["lag"]) == ("empty", 4)
    assert dledger(cluster, "group", "delete", "live").returncode == 0
    assert "there is no consumer group 'live'" in dledger(cluster, *group).stderr


def test_produce_beside_a_cluster_that_is_starting_waits_for_its_first_leader(cluster):
    for name in ("namesrv", *cluster.node_ids):
        cluster.kill(name)
    cluster.restart("namesrv")
    words = [sys.executable, "-m", "dledger_admin", "produce", "--topic", "first", "--timeout", "60"]
    environment = {**os.environ, "DLEDGER_NAMESRV": cluster.namesrv}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as produce:
        said = produce.stderr.readline()
        # A name server that is killed right after the first registration may not have written down that there was one.
        assert said in {
            f"waiting until {missing} registers with name server {cluster.namesrv}\n"
            for missing in ("a leader of broker-a", "a broker")
        }
        for node_id in cluster.node_ids:
            cluster.restart(node_id)
        output, _ = produce.communicate("1\n2\n", timeout=60)
    assert (produce.returncode, output) == (0, "2 messages, 2 bytes to first\n")


def test_a_topic_has_as_many_queues_whether_produce_or_topic_create_makes_it(cluster):
    assert dledger(cluster, "produce", "--topic", "made-by-produce", stdin="1\n").returncode == 0
    assert dledger(cluster, "topic", "create", "made-by-create").returncode == 0
    for topic in ("made-by-produce", "made-by-create"):
        described = json.loads(dledger(cluster, "topic", "describe", topic, "-o", "json").stdout)
        assert len(described["queues"]) == 8


async def test_what_is_shown_begins_and_ends_where_it_was_said(cluster, topic):
    def shown(*words):
        told = dledger(cluster, "consume", "--topic", topic, "--to", "end", "--queue", "2", *words)
        assert told.returncode == 0, told.stderr
        return told.stdout

    lines = "".join(f"k{number}\t{number}\n" for number in range(10))
    assert dledger(cluster, "produce", "--topic", topic, "-k", "--queue", "broker-a/2", stdin=lines).returncode == 0
    assert shown("-k") == lines
    assert shown("--from", "-3", "-f", "%p@%o ") == "2@7 2@8 2@9 "
    assert shown("--from", "8").split() == ["8", "9"]
    assert shown("--from", "100") == ""
    assert dledger(cluster, "consume", "--topic", topic, "--queue", "2", "--to", "-8").stdout.split() == ["0", "1"]
    stored = int(shown("-n", "1", "-f", "%T"))
    assert len(shown("--from", str(stored)).split()) == 10
    assert len(shown("--from", "-10m").split()) == 10
    assert dledger(cluster, "consume", "--topic", topic, "--to", str(stored)).stdout == ""
    again = dledger(
        cluster, "produce", "--topic", topic, "-f", "%k:%s", "-n", "1", "--queue", "3", stdin="a:b:c\nd:e\n"
    )
    assert again.stdout == f"1 messages, 3 bytes to {topic}\n"
    assert dledger(cluster, "consume", "--topic", topic, "--queue", "3", "--to", "end", "-k").stdout == "a\tb:c\n"
    group = ("consume", "--topic", topic, "--group", "bounded")
    assert dledger(cluster, *group, "--to", "4", "--queue", "2").stdout.split() == ["0", "1", "2", "3"]
    assert dledger(cluster, *group, "--to", "6", "--queue", "2", "--from", "end").stdout.split() == ["4", "5"]
    assert dledger(cluster, *group, "--to", "end", "--queue", "2").stdout.split() == ["6", "7", "8", "9"]


async def test_lines_for_later_are_not_there_before_they_are_due_and_come_then(cluster, topic):
    def now_ms():
        return time.time_ns() // 1_000_000

    def produced(line, *words):
        told = dledger(cluster, "produce", "--topic", topic, *words, stdin=line)
        assert told.returncode == 0, told.stderr
        sent, handle = told.stdout.splitlines()
        assert sent == f"1 messages, {len(line.strip())} bytes to {topic}"
        return handle

    def shown(*words):
        told = dledger(cluster, "consume", "--topic", topic, "-f", "%s %T\n", *words)
        assert told.returncode == 0, told.stderr
        return {body: int(stored) for body, stored in map(str.split, told.stdout.splitlines())}

    handle = produced("in-an-hour\n", "--delay", "3600")
    delayed_ms = now_ms() + 2_000
    produced("delayed\n", "--delay", "2")
    at_ms = now_ms() + 10_000
    produced("at-a-time\n", "--deliver-at", str(at_ms))
    stored_ms = shown("--from", "first", "-n", "2")
    assert list(stored_ms) == ["delayed", "at-a-time"]
    assert stored_ms["delayed"] >= delayed_ms
    assert stored_ms["at-a-time"] >= at_ms
    assert shown("--from", "first", "--to", "end") == stored_ms, "the first line waits"
    recalled = dledger(cluster, "message", "recall", handle, "--topic", topic)
    assert recalled.stdout.endswith(f" is not delivered to {topic}\n"), recalled.stderr


async def test_lines_with_an_ordering_key_are_in_its_queue_in_their_order_whoever_sends_them(cluster, topic):
    placed = {}
    async with Producer(cluster.namesrv) as producer:
        for key in "abcdefghij":
            placed[key] = (await producer.send(topic, key.encode(), ordering_key=key)).queue_id
    one, other = "a", next(key for key in placed if placed[key] != placed["a"])
    for key in (one, other):
        lines = "".join(f"{key}{number}\n" for number in range(20))
        assert dledger(cluster, "produce", "--topic", topic, "--ordering-key", key, stdin=lines).returncode == 0
    told = dledger(cluster, "consume", "--topic", topic, "--to", "end", "-f", "%p %s\n").stdout
    found = [(int(queue), body) for queue, body in map(str.split, told.splitlines())]
    for key in (one, other):
        bodies = [key, *(f"{key}{number}" for number in range(20))]
        assert [place for place in found if place[1].startswith(key)] == [(placed[key], body) for body in bodies]


async def test_lines_with_keys_that_keep_their_order_have_a_queue_for_each_key(cluster, topic):
    lines = "".join(f"key-{number % 8}\t{number}\n" for number in range(80))
    assert dledger(cluster, "produce", "--topic", topic, "-k", "--ordered", stdin=lines).returncode == 0
    told = dledger(cluster, "consume", "--topic", topic, "--to", "end", "-f", "%p %k %s\n").stdout
    found = {}
    for queue, key, body in map(str.split, told.splitlines()):
        found.setdefault(key, []).append((queue, int(body)))
    assert len({queue for placed in found.values() for queue, _ in placed}) > 1
    for number in range(8):
        queues, bodies = zip(*found[f"key-{number}"], strict=True)
        assert len(set(queues)) == 1
        assert list(bodies) == list(range(number, 80, 8))
