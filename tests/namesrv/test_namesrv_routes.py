"""Routes, lists of topics and an operator's changes of them, requested from a name server over a socket."""

from collections.abc import Iterable

import pytest
from served_names import A, B, Client, registration

from dledger_namesrv.records import queue_data
from dledger_remoting.bodies import TopicList, decode_body
from dledger_remoting.headers import (
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    RegisterBrokerHeader,
    RouteHeader,
)
from dledger_remoting.registration import DataVersion, encode_registration
from dledger_remoting.route import decode_route
from dledger_remoting.topics import CREATED_ATTRIBUTE, TopicConfig


async def test_a_route_comes_in_the_dialect_of_the_client(client):
    await client.register()
    await client.register(2, B)
    old = await client.route(version=317)
    assert old.body == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"broker-0",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-0",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    standard = old.body.replace(b"{0:", b'{"0":').replace(b",2:", b',"2":')
    assert (await client.route()).body == standard
    assert (await client.call(105, RouteHeader("T1", accept_standard_json_only=True), version=317)).body == standard


class OurRouteHeader(RouteHeader, frozen=True):
    """As clients of ours ask."""

    include_absent: bool = True


async def test_clients_of_ours_are_told_which_creation_of_a_topic_it_is_and_others_are_not(client):
    first, again = (TopicConfig("T1", 4, 4, attributes={CREATED_ATTRIBUTE: number}) for number in ("4711", "9000"))
    other = TopicConfig("T2")
    await register_topics(client, first, other)
    ours = OurRouteHeader("T1")

    async def told() -> list[int | None]:
        bodies = [(await client.call(105, ext)).body for ext in (ours, RouteHeader("T1"), ours)]
        return [decode_route(body).queue_datas[0].topic_created for body in bodies]

    assert await told() == [4711, None, 4711]
    assert b"opicCreated" not in (await client.route()).body
    await register_topics(client, again, other, changes=1)
    assert await told() == [9000, None, 9000]


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 30, "٣"])
async def test_a_creation_that_is_no_number_is_none(text):
    assert queue_data("b", TopicConfig("T1", attributes={CREATED_ATTRIBUTE: text})).topic_created is None


async def test_cluster_information_tells_the_truth(client):
    await client.register(2, B, topics=("T1", "T2"))
    assert (await client.call(106)).body == (
        b'{"brokerAddrTable":{"broker-0":{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-0","cluster":"C",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"C":["broker-0"]}}'
    )
    assert b'{2:"127.0.0.1:10921"}' in (await client.call(106, version=317)).body
    members = await client.call(901, BrokerMemberGroupHeader("C", "broker-0"))
    assert members.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-0","cluster":"C"}}'
    )


async def test_topic_lists(client):
    assert (await client.call(206)).body == b'{"topicList":[]}'
    await client.register()
    assert (await client.call(206)).body == b'{"topicList":["T1","TBW102"]}'
    assert (await client.call(224, ClusterHeader("C"))).body == b'{"topicList":["T1","TBW102"]}'
    assert (await client.call(224, ClusterHeader("D"))).body == b'{"topicList":[]}'
    assert (await client.call(304)).body == b'{"topicList":["C","broker-0"],"brokerAddr":"127.0.0.1:10911"}'
    assert (await client.call(311)).body == b'{"topicList":[]}'


async def register_topics(
    client: Client, *configs: TopicConfig, name: str = "broker-0", address: str = A, changes: int = 0
) -> None:
    body = encode_registration(registration(configs, DataVersion(0, 0, changes)))
    assert (await client.call(103, RegisterBrokerHeader(name, address, "C", "", 0), body=body)).code == 0


@pytest.mark.parametrize(
    ("code", "topics"),
    [(311, ["both", "unit"]), (312, ["both", "subscribed"]), (313, ["subscribed"])],
    ids=["units", "units subscribe", "units subscribe and it is none"],
)
async def test_topics_of_units_are_told_by_the_two_bits_that_rocketmq_gives_them(client, code, topics):
    """Bit 0 marks a topic of a unit, and bit 1 a topic to which units subscribe."""
    flags = {"plain": 0, "unit": 1, "subscribed": 2, "both": 3, "unknown": 4}
    await register_topics(client, *(TopicConfig(topic, topic_sys_flag=flag) for topic, flag in flags.items()))
    answer = await client.call(code)
    assert decode_body(TopicList, answer.body).topic_list == topics


async def permissions(client: Client, topics: Iterable[str], group: str = "broker-0") -> list[int]:
    routes = [decode_route((await client.route(topic)).body) for topic in topics]
    return [queues.perm for route in routes for queues in route.queue_datas if queues.broker_name == group]


@pytest.mark.parametrize(
    ("code", "counted", "after"),
    [(327, "addTopicCount", [6, 6, 6, 6, 6]), (205, "wipeTopicCount", [5, 4, 4, 0, 0])],
    ids=["added", "wiped"],
)
async def test_a_groups_write_permission_is_added_as_exactly_6_and_wiped_as_one_bit(client, code, counted, after):
    """As in RocketMQ, 327 drops the inherit bit, and makes topics readable that nobody could read."""
    topics = {f"T{perm}": TopicConfig(f"T{perm}", perm=perm) for perm in (7, 6, 4, 2, 0)}
    await register_topics(client, *topics.values())
    await register_topics(client, *topics.values(), name="broker-1", address=B)
    assert (await client.call(code, BrokerNameHeader("broker-0"))).ext == {counted: "5"}
    assert await permissions(client, topics) == after
    assert await permissions(client, topics, "broker-1") == [7, 6, 4, 2, 0]
