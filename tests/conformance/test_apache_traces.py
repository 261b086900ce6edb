"""Traces of Apache RocketMQ's own Java and Go clients are found, and Java's tools read the traces of our client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import rows
from cluster_checks import create_topic, dledger, wait_until
from rows import RETRY_SECONDS
from stock_clients import GO_CLIENT, JAVA_CLIENTS

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.traces import SendTrace, Trace, kind_of

STORY = ["Pub", "SubBefore", "SubAfter"]
PATIENCE_S = 45.0
PACE_S = 0.5

_NUMBERS = count()


def new_topic(cluster: LocalCluster) -> str:
    """Create a topic for one test only."""
    name = f"Traced{next(_NUMBERS)}"
    create_topic(cluster, name)
    return name


def awaited(one_group: LocalCluster, wait_for: Callable, message_id: str, story: list[str]) -> list[Trace]:
    with SyncAdmin(one_group.namesrv) as admin:
        wait_for(
            lambda: len(admin.message_trace(message_id)) >= len(story), "the trace of a message", timeout=PATIENCE_S
        )
        return admin.message_trace(message_id)


@pytest.mark.parametrize("cluster", ["quick_group", "one_group"])
def test_traces_of_a_client_are_found_by_message_id(apache, request, cluster):
    """Consumers of Java's 5.3.3 trace only messages with MSG_REGION, so the cluster needs a `region_id`."""
    is_silent = request.node.callspec.params["program"] == JAVA_CLIENTS[0] and cluster == "one_group"
    story = STORY[:1] if is_silent else STORY
    one_group = request.getfixturevalue(cluster)
    topic = new_topic(one_group)
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, trace=True)
    sent = client.call("send", topic=topic, body="hello", tag="a", keys="k1", trace=True)
    client.wait_for(lambda: client.bodies("reader"), "the message", timeout=PATIENCE_S)
    found = awaited(one_group, client.wait_for, sent["message_id"], story)
    assert [kind_of(trace) for trace in found] == story
    send = found[0]
    assert isinstance(send, SendTrace)
    assert (send.topic, send.tags, send.keys, send.body_bytes, send.succeeded) == (topic, "a", "k1", 5, True)
    assert send.offset_message_id == sent["offset_message_id"]
    told = ("message", "trace", sent["message_id"], "--namesrv", one_group.namesrv)
    assert [one["kind"] for one in json.loads(dledger(*told, "-o", "json"))] == story
    client.call("close_push", name="reader")


def test_traces_survive_a_leader_kill_and_tracing_continues(quick_group, apache, program):
    """Go's client traces again once that node is back.

    Its dispatcher asks for a route only once (`findMq`, `internal/trace.go`).
    """
    topic = new_topic(quick_group)
    client = apache(quick_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, trace=True)
    before = [client.call("send", topic=topic, body=f"before {n}", trace=True)["message_id"] for n in range(4)]
    for message_id in before:
        awaited(quick_group, client.wait_for, message_id, STORY)
    killed = quick_group.kill_leader()
    try:
        for message_id in before:
            assert [kind_of(trace) for trace in awaited(quick_group, client.wait_for, message_id, STORY)] == STORY
        if Path(program[0]).stem != "java":
            quick_group.restart(killed)
        after: list[str] = []

        def goes_on() -> bool:
            """Send another message: a client does not repeat traces that it wrote while there was no leader."""
            after.append(rows.send(client, topic=topic, body=f"after {len(after)}", trace=True)["message_id"])
            time.sleep(PACE_S)
            with SyncAdmin(quick_group.namesrv) as admin:
                return any(len(admin.message_trace(message_id)) >= len(STORY) for message_id in after[-10:])

        assert wait_until(goes_on, RETRY_SECONDS), "a message that was sent behind the kill is traced"
        client.call("close_push", name="reader")
    finally:
        if quick_group.pid(killed) is None:
            quick_group.restart(killed)
        quick_group.wait_ready()


@pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)
def test_java_reads_traces_of_this_client(one_group, apache, topic):
    with SyncProducer(one_group.namesrv, group="own-producers", trace=True) as producer:
        sent = producer.send(topic, b"hello", tags="a", key="k1")
    with SyncConsumer(one_group.namesrv, f"{topic}-readers", topic, trace=True) as consumer:
        next(consumer).ack()
    client = apache(one_group.namesrv)
    awaited(one_group, client.wait_for, sent.message_id, STORY)
    found = sorted(client.call("view_trace", message_id=sent.message_id))
    assert [(kind, status) for kind, _, status in found if kind != "SubBefore"] == [
        ("Pub", "success"),
        ("SubAfter", "success"),
    ]
    assert found[0][1] == "own-producers"
    assert len(found) == len(STORY)


@pytest.mark.parametrize("program", [GO_CLIENT], indirect=True)
def test_a_request_of_the_go_client_gets_its_reply(one_group, apache, topic):
    asker, answerer = apache(one_group.namesrv), apache(one_group.namesrv)
    answerer.call("push", name="answerer", group=f"{topic}-answerers", topic=topic, replies="re: ")
    for body in ("first", "second"):
        assert asker.call("request", topic=topic, body=body, timeout_ms=45_000) == f"re: {body}"
