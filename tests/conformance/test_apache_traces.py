"""Traces of Apache RocketMQ's own clients, Java and Go: what they write is found, and Java reads what ours writes.

`make test-clients` runs this.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count

import pytest
from cluster_checks import create_topic, dledger
from stock_clients import GO_CLIENT, JAVA_CLIENTS

from dledger_client import SyncAdmin, SyncConsumer, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.traces import SendTrace, Trace, kind_of

STORY = ["Pub", "SubBefore", "SubAfter"]
PATIENCE_S = 45.0

_NUMBERS = count()


@pytest.fixture
def topic(one_group: LocalCluster) -> str:
    """A topic of the test's own."""
    name = f"Traced{next(_NUMBERS)}"
    create_topic(one_group, name)
    return name


def awaited(one_group: LocalCluster, wait_for: Callable, message_id: str, story: list[str]) -> list[Trace]:
    with SyncAdmin(one_group.namesrv) as admin:
        wait_for(
            lambda: len(admin.message_trace(message_id)) >= len(story), "the trace of a message", timeout=PATIENCE_S
        )
        return admin.message_trace(message_id)


def test_what_a_client_writes_about_a_message_is_found_by_its_id(one_group, apache, topic, request):
    """Consumers of Java's 5.3.3 write no traces of messages without MSG_REGION, which this broker does not store."""
    story = STORY[:1] if request.node.callspec.params["program"] == JAVA_CLIENTS[0] else STORY
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


@pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)
def test_java_reads_what_this_client_writes(one_group, apache, topic):
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
def test_a_request_of_go_gets_its_reply_and_neither_waits_for_a_trace(one_group, apache, topic):
    asker, answerer = apache(one_group.namesrv), apache(one_group.namesrv)
    answerer.call("push", name="answerer", group=f"{topic}-answerers", topic=topic, replies="re: ")
    for body in ("first", "second"):
        assert asker.call("request", topic=topic, body=body, timeout_ms=45_000) == f"re: {body}"
