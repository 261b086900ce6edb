"""Every command of Apache RocketMQ's own `mqadmin`, unmodified, of the 5.x and of the 4.x line.

The output of each command has the same shape as with a real RocketMQ 5.3.3. If a command is impossible here, the output
says why and what to do instead. The recorded shapes are in `mqadmin_5.3.3.txt` and `mqadmin_4.9.8.txt`. `make
test-clients` runs this. To record again, start a RocketMQ 5.3.3 of one broker with `traceTopicEnable=true`, and run:

    RECORD_MQADMIN=NAMESRV,BROKER_ADDRESS,CLUSTER,BROKER_NAME make test-clients
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from conftest import HERE, installed_jars, started_mqadmin
from mqadmin import COMMANDS, NEW, OLD, Command, differences, leaves, read_sections, sections, shape_of
from stock_clients import StockClient

from dledger_client import Admin, Producer, PushConsumer, ReceivedMessage
from dledger_client.testing import LocalCluster, local_cluster_fixture

RECORDED_FROM: Final = os.environ.get("RECORD_MQADMIN")
SECONDS: Final = 40
MESSAGES: Final = 3
NO_ROUTE: Final = "No topic route info"
"""Text of an error.

The test that looks for it must not contain it: `mqadmin` prints a consumer's stacks, with lines of this file.
"""

admin_group = local_cluster_fixture(scope="module", config='region_id = "DefaultRegion"\n')
aliased_group = local_cluster_fixture(scope="module", config="write_aliases = true\n")
Run = Callable[..., str]


@pytest.fixture(scope="module", params=[NEW, OLD])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Return a function that runs one command, given without its name server, and returns the output."""
    with started_mqadmin(request, version, tmp_path_factory.mktemp(f"mqadmin-{version}")) as tools:

        def command(words: str, seconds: int = SECONDS) -> str:
            return str(tools.call("run", timeout=2 * SECONDS, words=words.split(), seconds=seconds))

        yield command


@pytest.fixture(scope="module")
def names(
    request: pytest.FixtureRequest, version: str, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Return the values of the names in braces.

    The topic has messages, which a running member of the group has consumed.
    """
    if RECORDED_FROM:
        namesrv, address, cluster, broker = RECORDED_FROM.split(",")
    else:
        group: LocalCluster = request.getfixturevalue("admin_group")
        namesrv, address, cluster, broker = of_cluster(group, run)
    topic = f"Admin{version.replace('.', '')}"
    files = tmp_path_factory.mktemp("exports")
    found = {
        "namesrv": namesrv, "address": address, "cluster": cluster, "broker": broker, "topic": topic,
        "group": f"{topic}-readers", "other_group": f"{topic}-others", "static_topic": f"{topic}-static",
        "producers": "java-producers", "key": f"{topic}-key", "exports": str(files),
        "topics_file": str(files / "topics.json"), "groups_file": str(files / "groups.json"),
    }  # fmt: skip
    (files / "topics.json").write_text(json.dumps([{"topicName": f"{topic}-listed", "perm": 6}]))
    (files / "groups.json").write_text(json.dumps([{"groupName": f"{topic}-listed-readers"}]))
    run(f"updateTopic -n {namesrv} -c {cluster} -t {topic} -r 1 -w 1")
    folder = installed_jars(request, "java-5.3.3", NEW, HERE / "java" / "pom.xml", "Driver")
    home = tmp_path_factory.mktemp("driver")
    command = ["java", f"-Duser.home={home}", "-cp", f"{folder}/lib/*{os.pathsep}{folder}/classes", "Driver", namesrv]
    with StockClient(command, home=home) as client:
        message = {"topic": topic, "keys": found["key"], "tag": "red"}
        sent = [client.call("send", body=f"body {number}", **message) for number in range(MESSAGES)]
        traced = client.call("send", body="traced", trace=True, **message)
        client.call("push", name="reader", group=found["group"], topic=topic)
        client.wait_for(lambda: len(client.bodies("reader")) > MESSAGES, "the messages")
        wait_until(run, f"consumerProgress -n {namesrv} -g {found['group']}", r"Diff Total: 0\b")
        wait_until(run, f"queryMsgTraceById -n {namesrv} -i {traced['message_id']}", r"\bPub\b")
        members = run(f"consumerConnection -n {namesrv} -g {found['group']}")
        found["client"] = re.search(r"\d+\.\d+\.\d+\.\d+@\S+", members)[0]
        found["unique_id"], found["offset_id"] = sent[0]["message_id"], sent[0]["offset_message_id"]
        found["traced_id"] = traced["message_id"]
        yield found


def wait_until(run: Run, words: str, pattern: str) -> None:
    """Wait until a command prints a pattern: clients commit every 5 s, and send traces in batches."""
    deadline = time.monotonic() + SECONDS
    while not re.search(pattern, printed := run(words)):
        assert time.monotonic() < deadline, shown(printed)


def of_cluster(group: LocalCluster, run: Run) -> tuple[str, str, str, str]:
    """Return name server, address of the leader, cluster and broker group."""
    line = next(line.split() for line in run(f"clusterList -n {group.namesrv}").splitlines() if " 0 " in line)
    return group.namesrv, line[3], line[0], line[1]


@pytest.fixture(scope="module")
def printed(version: str, run: Run, names: dict[str, str]) -> dict[str, str]:
    """Return the output of each command, by its words with names in braces."""
    found = {}
    for command in of(version):
        words = command.words.format(**names)
        found[command.words] = run(f"{words} -n {names['namesrv']}", command.seconds)
        if command.writes and (file := Path(names["exports"], command.writes)).exists():
            written = leaves(json.loads(file.read_bytes()), command.writes)
            found[command.words] += "\n" + "\n".join(written)
    if RECORDED_FROM:
        shapes = [(one.words, shape_of(one, found[one.words], names)) for one in of(version) if one.refused is None]
        recording(version).write_text(sections(shapes))
    return found


def of(version: str) -> list[Command]:
    return [command for command in COMMANDS if command.only in (None, version)]


def recording(version: str) -> Path:
    return HERE / f"mqadmin_{version}.txt"


def shown(text: str) -> str:
    return f"it printed:\n{text}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_a_mqadmin_command_prints_the_same_as_with_rocketmq_or_is_refused(
    command: Command, version: str, printed: Mapping[str, str], names: Mapping[str, str]
) -> None:
    if command not in of(version):
        pytest.skip(f"{version} has not got it")
    text = printed[command.words]
    if command.refused is not None:
        assert RECORDED_FROM or command.refused in text, shown(text)
        return
    recorded = read_sections(recording(version).read_text())
    assert differences(command, text, recorded, names) == ([], []), shown(text)


def test_every_command_of_mqadmin_is_tried(version: str, run: Run) -> None:
    listed = set(re.findall(r"^   (\w+) ", run(""), re.MULTILINE))
    assert listed == {command.name for command in of(version)}
    assert len(listed) == {NEW: 89, OLD: 56}[version]


async def test_a_consumer_of_our_client_serves_status_and_consume_requests_of_mqadmin(
    version: str, run: Run, admin_group: LocalCluster
) -> None:
    topic = f"AdminOurs{version.replace('.', '')}"
    namesrv, members, seen = admin_group.namesrv, f"{topic}-readers", asyncio.Queue[ReceivedMessage]()
    async with asyncio.timeout(4 * SECONDS), Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=1)
        async with PushConsumer(namesrv, members, topic, seen.put) as consumer, Producer(namesrv) as producer:
            await producer.send(topic, b"ours")
            message = await seen.get()
            asked = f"consumerStatus -n {namesrv} -g {members} -i {consumer.client_id} -s"
            while NO_ROUTE in (status := await asyncio.to_thread(run, asked)):
                pass  # a name server may not know the retry topic of the new group yet
            assert re.search(rf"{topic} +\S+ +0 ", status), shown(status)
            assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", status), shown(status)
            assert "task handler 0" in status, shown(status)
            told = f"queryMsgById -n {namesrv} -g {members} -d {consumer.client_id} -i {message.offset_message_id}"
            result = await asyncio.to_thread(run, told if version == OLD else f"{told} -t {topic}")
            assert "CR_SUCCESS" in result, shown(result)
            assert (await seen.get()).body == b"ours"


async def test_totals_of_mqadmin_count_no_write_alias(run: Run, version: str, aliased_group: LocalCluster) -> None:
    topic, namesrv = f"Aliased{version.replace('.', '')}", aliased_group.namesrv
    members, seen = f"{topic}-readers", asyncio.Queue[ReceivedMessage]()

    def tool(words: str) -> str:
        return run(f"{words} -n {namesrv}")

    async with asyncio.timeout(4 * SECONDS), Admin(namesrv) as admin:
        await admin.create_topic(topic, queues=4)
        async with PushConsumer(namesrv, members, topic, seen.put), Producer(namesrv) as producer:
            for number in range(8):
                await producer.send(topic, b"aliased", key=f"{topic}-{number}")
            for _ in range(8):
                await seen.get()
            progressed = f"consumerProgress -n {namesrv} -g {members}"
            await asyncio.to_thread(wait_until, run, progressed, r"Diff Total: 0\b")
            assert len(await asyncio.to_thread(brokers_of, tool(f"topicRoute -t {topic}"))) == 3, "with two aliases"
            status = tool(f"topicStatus -t {topic}")
            assert len(re.findall(r"^broker-a +\d", status, re.MULTILINE)) == 4, shown(status)
            progress = tool(f"consumerProgress -g {members}")
            assert len(re.findall(rf"^{topic} +broker-a +\d", progress, re.MULTILINE)) == 4, shown(progress)
            statistics = tool(f"statsAll -t {topic}")  # the figures are an hour old, and other tests check them
            assert len(re.findall(rf"^{topic} +{members} ", statistics, re.MULTILINE)) == 1, shown(statistics)
            found = tool(f"queryMsgByKey -t {topic} -k {topic}-3")
            assert len(re.findall(r"^[0-9A-F]{32} ", found, re.MULTILINE)) == 1, shown(found)
            printed = tool(f"printMsg -t {topic}")
            assert len(re.findall(r"^MSGID: ", printed, re.MULTILINE)) == 8, shown(printed)
        reset = tool(f"resetOffsetByTime -g {members} -t {topic} -s 0")
        assert len(re.findall(r"^broker-a +\d", reset, re.MULTILINE)) == 4, shown(reset)


def brokers_of(route: str) -> set[str]:
    """Return the broker names in the output of `topicRoute`."""
    return set(re.findall(r'"brokerName":"([^"]+)"', route))
