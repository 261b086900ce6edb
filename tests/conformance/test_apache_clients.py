"""Apache RocketMQ's own clients, unmodified: Java of the 5.x and of the 4.x line, and Go.

`make test-clients` runs this; it needs a JDK and Maven, and takes minutes, so that `make test` leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import stories
from cluster_checks import (
    bodies_of,
    create_topic,
    stored_messages,
)
from stock_clients import GO_CLIENT, JAVA_CLIENTS, StockClientError
from wiretap import Wiretap

from dledger_client.sync import SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode
from dledger_remoting.recalls import RecallHandle

REBALANCE_SECONDS = 45.0
REQUEST_TIMEOUT_MS = 45_000
RETRY_SECONDS = 90.0
ONLY_JAVA = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)

WITH_AND_WITHOUT_A_KILL = pytest.mark.parametrize(
    "middle", [False, True], ids=["undisturbed", "leader killed"], indirect=True
)
_NUMBERS = count()


@pytest.fixture
def middle(one_group: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """To be called in a test's middle: kills the leader, if the test is about that. It is back behind the test."""
    killed: list[str] = []
    yield lambda: killed.append(one_group.kill_leader()) if request.param else None
    for node_id in killed:
        one_group.restart(node_id)
        one_group.wait_ready()


@pytest.fixture
def topic(one_group: LocalCluster) -> str:
    """A topic of the test's own."""
    name = f"Apache{next(_NUMBERS)}"
    create_topic(one_group, name)
    return name


def test_the_first_message_to_an_unknown_topic_creates_it(one_group, apache, topic):
    apache(one_group.namesrv).call("send", topic=f"{topic}-unknown", body="first")
    assert bodies_of(stored_messages(one_group, f"{topic}-unknown")) == ["first"]


@ONLY_JAVA
def test_a_message_is_stored_with_its_body_tag_and_keys_and_found_by_them(one_group, apache, topic):
    client = apache(one_group.namesrv)
    sent = client.call("send", topic=topic, body="hello", tag="greeting", keys="k1")
    (found,) = stored_messages(one_group, topic)
    assert (sent["status"], sent["queue_id"], sent["queue_offset"]) == ("SEND_OK", found.queue.queue_id, 0)
    assert (found.body, found.tags, found.keys) == (b"hello", "greeting", ("k1",))
    assert (found.message_id, found.offset_message_id) == (sent["message_id"], sent["offset_message_id"])
    for message_id in (sent["message_id"], sent["offset_message_id"]):
        assert client.call("view", topic=topic, message_id=message_id) == "hello"
    assert client.call("query", topic=topic, key="k1") == ["hello"]
    assert sorted(client.call("offsets", topic=topic)) == [[0, 0, 0]] * 3 + [[0, 1, 0]]


@pytest.mark.parametrize("way", ["send_async", "send_oneway"])
def test_a_message_that_is_not_waited_for_is_stored(one_group, apache, topic, way):
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    for number in range(20):
        client.call(way, topic=topic, body=str(number))
    client.wait_for(lambda: len(client.bodies("reader")) >= 20, "20 messages")
    assert sorted(client.bodies("reader"), key=int) == [str(number) for number in range(20)]


def test_a_batch_becomes_single_messages_with_consecutive_offsets(one_group, apache, topic):
    bodies = [f"part {number}" for number in range(32)]
    apache(one_group.namesrv).call("send_batch", topic=topic, bodies=bodies)
    messages = stored_messages(one_group, topic)
    assert bodies_of(messages) == bodies
    assert [message.queue_offset for message in messages] == [*range(32)]


def test_messages_of_one_shard_lie_in_one_queue_in_order(one_group, apache, topic):
    client = apache(one_group.namesrv)
    offsets = [client.call("send_orderly", topic=topic, body=str(n), shard=3)["queue_offset"] for n in range(10)]
    assert offsets == list(range(10))
    messages = stored_messages(one_group, topic)
    assert bodies_of(messages) == [str(number) for number in range(10)]
    assert len({message.queue for message in messages}) == 1


def test_a_body_that_the_client_compresses_is_read_back_whole(one_group, apache, topic):
    body = "compressible " * 5000
    client = apache(one_group.namesrv)
    client.call("send", topic=topic, body=body)
    assert bodies_of(stored_messages(one_group, topic)) == [body]
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.wait_for(lambda: client.bodies("reader") == [body], "the message")


@pytest.mark.parametrize(("expression", "expected"), [("*", {"0", "1", "2"}), ("Aa", {"0"}), ("Aa || Cc", {"0", "2"})])
def test_a_push_consumer_gets_what_its_tags_select_though_hashes_collide(
    one_group, apache, topic, expression, expected
):
    with SyncProducer(one_group.namesrv) as producer:
        for number, tag in enumerate(("Aa", "BB", "Cc")):  # "Aa" and "BB" have the same hash
            producer.send(topic, b"%d" % number, tags=tag)
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, tag=expression)
    client.wait_for(lambda: len(client.bodies("reader")) >= len(expected), f"{len(expected)} messages")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == sorted(expected)


def test_a_push_consumer_gets_what_its_expression_in_sql_is_true_of(one_group, apache, topic):
    with SyncProducer(one_group.namesrv) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, tags="red", properties={"amount": str(number)})
    client = apache(one_group.namesrv)
    client.call(
        "push", name="reader", group=f"{topic}-readers", topic=topic, sql="amount BETWEEN 3 AND 5 AND TAGS = 'red'"
    )
    client.wait_for(lambda: len(client.bodies("reader")) >= 3, "3 messages")
    with SyncProducer(one_group.namesrv) as producer:
        producer.send(topic, b"left out", tags="blue", properties={"amount": "4"})
        producer.send(topic, b"awaited", tags="red", properties={"amount": "4"})
    client.wait_for(lambda: "awaited" in client.bodies("reader"), "the message that it waits for")
    client.call("close_push", name="reader")
    assert sorted(client.bodies("reader")) == ["3", "4", "5", "awaited"]


@WITH_AND_WITHOUT_A_KILL
@ONLY_JAVA
def test_an_expression_in_sql_with_a_fault_is_told_before_anything_is_consumed(one_group, apache, topic, middle):
    client = apache(one_group.namesrv)
    middle()
    told = "line 1, column 9: expected a property or a literal, found the end"
    subscribe = partial(client.call, "push", name="reader", group=f"{topic}-readers", topic=topic, sql="amount >")
    with pytest.raises(StockClientError, match=told):
        tried_until(subscribe, lambda error: told in str(error))


@WITH_AND_WITHOUT_A_KILL
@pytest.mark.parametrize("program", [GO_CLIENT], indirect=True)
def test_a_client_that_does_not_ask_beforehand_is_refused_its_pulls_by_an_expression_with_a_fault(
    one_group, apache, topic, middle
):
    with Wiretap(one_group) as tap:
        client = apache(tap.namesrv)
        middle()
        client.call("push", name="reader", group=f"{topic}-readers", topic=topic, sql="amount >")
        client.wait_for(lambda: any(one.answer == 23 for one in tap.exchanges(RequestCode.PULL_MESSAGE)), "a refusal")
        client.call("close_push", name="reader")


def test_a_group_that_comes_back_goes_on_where_it_was(one_group, apache, topic):
    client = apache(one_group.namesrv)
    stories.comes_back(one_group, client, client, f"{topic}-readers", topic)


def test_every_member_of_a_broadcast_group_gets_everything(one_group, apache, topic):
    members = [apache(one_group.namesrv), apache(one_group.namesrv)]
    for number, member in enumerate(members):
        member.call("push", name=f"member-{number}", group=f"{topic}-readers", topic=topic, broadcast=True)
    for number in range(20):
        members[0].call("send", topic=topic, body=str(number))
    for number, member in enumerate(members):
        member.wait_for(lambda member=member: len(member.received) >= 20, "20 messages", timeout=REBALANCE_SECONDS)
        assert sorted(map(int, member.bodies(f"member-{number}"))) == list(range(20))


def test_two_members_share_the_queues_and_one_takes_over_what_the_other_leaves(one_group, apache, topic):
    members = [apache(one_group.namesrv), apache(one_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, REBALANCE_SECONDS)


@ONLY_JAVA
def test_a_message_whose_listener_fails_comes_again(one_group, apache, topic):
    client = apache(one_group.namesrv)
    client.call("send", topic=topic, body="again")
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic, fails={"again": 1})
    client.wait_for(lambda: len(client.bodies("reader")) >= 2, "the second delivery", timeout=REBALANCE_SECONDS)
    assert set(client.bodies("reader")) == {"again"}


@WITH_AND_WITHOUT_A_KILL
def test_a_request_gets_its_reply(one_group, apache, topic, middle):
    asker, answerer = apache(one_group.namesrv), apache(one_group.namesrv)
    answerer.call("push", name="answerer", group=f"{topic}-answerers", topic=topic, replies="re: ")
    assert asker.call("request", topic=topic, body="first", timeout_ms=REQUEST_TIMEOUT_MS) == "re: first"
    middle()
    second = partial(asker.call, "request", topic=topic, body="second", timeout_ms=REQUEST_TIMEOUT_MS)
    assert tried_until(second, lambda _: False) == "re: second"


@ONLY_JAVA
def test_a_lite_pull_consumer_reads_everything_and_goes_on_where_it_committed(one_group, apache, topic):
    client = apache(one_group.namesrv)
    for first in (0, 30):
        for number in range(first, first + 30):
            client.call("send", topic=topic, body=str(number))
        found = client.call("lite_pull", group=f"{topic}-readers", topic=topic, count=30)
        assert sorted(map(int, found)) == list(range(first, first + 30))


@pytest.mark.parametrize("program", JAVA_CLIENTS[:1], indirect=True)
@pytest.mark.parametrize(("kills", "delay_ms"), [(False, 15_000), (True, 60_000)], ids=["whole", "killed"])
def test_a_message_for_later_is_taken_back_or_it_is_too_late(one_group, apache, topic, kills, delay_ms):
    client = apache(one_group.namesrv)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    taken_back = client.call("send_for_recall", topic=topic, body="taken back", delay_ms=delay_ms)
    kept = client.call("send_for_recall", topic=topic, body="kept", delay_ms=delay_ms + 500)
    killed = one_group.kill_leader() if kills else None
    recall = partial(client.call, "recall", topic=topic, handle=taken_back)
    unique_key = tried_until(recall, hears_of_it)
    assert RecallHandle.decode(taken_back).unique_key == unique_key
    assert tried_until(recall, hears_of_it) == unique_key
    client.wait_for(lambda: client.bodies("reader") != [], "the other message", timeout=60 + REBALANCE_SECONDS)
    with pytest.raises(StockClientError, match=r"604.*too late"):
        client.call("recall", topic=topic, handle=kept)
    client.call("close_push", name="reader")
    assert client.bodies("reader") == ["kept"]
    if killed is not None:
        one_group.restart(killed)
        one_group.wait_ready()


def hears_of_it(error: StockClientError) -> bool:
    return "RemotingConnectException" not in str(error)


def tried_until(call: Callable[[], object], is_last: Callable[[StockClientError], bool]) -> object:
    """What a call returns; some clients ask once, and know another leader only when they have polled the route."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return call()
        except StockClientError as error:
            if is_last(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)  # it hears nothing of it


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


def test_it_goes_on_after_a_kill_of_the_leader_that_stays_away(cluster, apache):
    stories.leader_killed_for_good(cluster, apache(cluster.namesrv), "ApacheKill")


@pytest.mark.parametrize("program", [JAVA_CLIENTS[0], GO_CLIENT], indirect=True)
def test_a_rolling_restart_of_all_nodes_fails_none_of_its_sends(cluster, apache):
    stories.rolling_restart(cluster, apache(cluster.namesrv), "ApacheRolling")


@pytest.mark.parametrize("program", [JAVA_CLIENTS[1]], indirect=True)
def test_a_rolling_restart_fails_only_sends_that_wait_on_a_broken_connection(cluster, apache):
    stories.rolling_restart(cluster, apache(cluster.namesrv), "ApacheRolling", stories.has_waited)
