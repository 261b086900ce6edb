"""Apache RocketMQ's own clients, unmodified: Java of the 5.x and of the 4.x line, and Go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import stories
from cluster_checks import bodies_of, stored_messages
from stock_clients import GO_CLIENT, JAVA_CLIENTS, StockClientError
from wiretap import Wiretap

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


@pytest.fixture
def middle(one_group: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Return a function that kills the leader if the test is about that. Afterwards restart the node."""
    killed: list[str] = []
    yield lambda: killed.append(one_group.kill_leader()) if request.param else None
    for node_id in killed:
        one_group.restart(node_id)
        one_group.wait_ready()


def test_the_first_message_to_an_unknown_topic_creates_it(one_group, apache, topic):
    apache(one_group.namesrv).call("send", topic=f"{topic}-unknown", body="first")
    assert bodies_of(stored_messages(one_group, f"{topic}-unknown")) == ["first"]


@ONLY_JAVA
def test_a_message_is_stored_with_body_tag_and_keys_and_found_by_id_and_key(one_group, apache, topic):
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
    stories.what_is_not_waited_for_is_stored(apache(one_group.namesrv), topic, way)


@pytest.mark.parametrize(
    "story",
    [
        stories.a_batch_becomes_single_messages,
        stories.a_shard_is_stored_in_order_in_one_queue,
        stories.a_large_body_is_read_back_whole,
    ],
)
def test_what_the_client_sends_is_stored_as_it_was_sent(one_group, apache, topic, story):
    story(one_group, apache(one_group.namesrv), topic)


@stories.EXPRESSIONS
def test_a_push_consumer_gets_only_its_tags_although_hashes_collide(one_group, apache, topic, expression, expected):
    stories.only_wanted_tags_are_received(one_group, apache(one_group.namesrv), topic, expression, expected)


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
def test_pulls_with_a_faulty_sql_expression_are_refused(one_group, apache, topic, middle):
    with Wiretap(one_group) as tap:
        client = apache(tap.namesrv)
        middle()
        client.call("push", name="reader", group=f"{topic}-readers", topic=topic, sql="amount >")
        client.wait_for(lambda: any(one.answer == 23 for one in tap.exchanges(RequestCode.PULL_MESSAGE)), "a refusal")
        client.call("close_push", name="reader")


def test_a_returning_group_continues_at_its_committed_offset(one_group, apache, topic):
    client = apache(one_group.namesrv)
    stories.comes_back(one_group, client, client, f"{topic}-readers", topic)


def test_two_members_share_the_queues_and_one_takes_over_after_the_other(one_group, apache, topic):
    members = [apache(one_group.namesrv), apache(one_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, REBALANCE_SECONDS)


@WITH_AND_WITHOUT_A_KILL
def test_a_request_gets_its_reply(one_group, apache, topic, middle):
    asker, answerer = apache(one_group.namesrv), apache(one_group.namesrv)
    answerer.call("push", name="answerer", group=f"{topic}-answerers", topic=topic, replies="re: ")
    assert asker.call("request", topic=topic, body="first", timeout_ms=REQUEST_TIMEOUT_MS) == "re: first"
    middle()
    second = partial(asker.call, "request", topic=topic, body="second", timeout_ms=REQUEST_TIMEOUT_MS)
    assert tried_until(second, lambda _: False) == "re: second"


@pytest.mark.parametrize("program", JAVA_CLIENTS[:1], indirect=True)
@pytest.mark.parametrize(("kills", "delay_ms"), [(False, 15_000), (True, 60_000)], ids=["whole", "killed"])
def test_a_delayed_message_can_be_recalled_until_its_delivery(one_group, apache, topic, kills, delay_ms):
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
    """Repeat a call until it succeeds, and return its result. Raise the last error.

    Some clients ask once, and find another leader only after they have polled the route.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return call()
        except StockClientError as error:
            if is_last(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.5)  # the client does not notice a broken connection


def test_the_client_continues_after_the_permanent_loss_of_the_leader(cluster, apache):
    stories.leader_killed_for_good(cluster, apache(cluster.namesrv), "ApacheKill")


@pytest.mark.parametrize("program", [JAVA_CLIENTS[0], GO_CLIENT], indirect=True)
def test_a_rolling_restart_of_all_nodes_fails_no_send(cluster, apache):
    stories.rolling_restart(cluster, apache(cluster.namesrv), "ApacheRolling")


@pytest.mark.parametrize("program", [JAVA_CLIENTS[1]], indirect=True)
def test_a_rolling_restart_fails_only_sends_that_wait_on_a_broken_connection(cluster, apache):
    stories.rolling_restart(cluster, apache(cluster.namesrv), "ApacheRolling", stories.has_waited)
