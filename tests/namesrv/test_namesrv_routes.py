"""Routes, lists of topics and what an operator changes of them, asked of a name server over a socket."""

from served_names import A, B

from dledger_remoting.headers import (
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    RegisterBrokerHeader,
    RouteHeader,
    TopicInClusterHeader,
)
from dledger_remoting.registration import RegisterBrokerBody, TopicConfigSerializeWrapper, encode_registration
from dledger_remoting.topics import TOPIC_UNIT, TopicConfig


async def test_a_route_comes_in_the_dialect_of_the_client(client):
    await client.register()
    await client.register(2, B)
    old = await client.call(105, RouteHeader("T1"), version=317)
    assert old.body == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"broker-0",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-0",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    standard = old.body.replace(b"{0:", b'{"0":').replace(b",2:", b',"2":')
    assert (await client.call(105, RouteHeader("T1"))).body == standard
    assert (await client.call(105, RouteHeader("T1", accept_standard_json_only=True), version=317)).body == standard


async def test_an_unknown_topic_is_answered_with_17(client):
    answer = await client.call(105, RouteHeader("X"))
    assert (answer.code, answer.body) == (17, b"")
    assert answer.remark == "No topic route info in name server for the topic: X"


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


async def test_unit_topics_are_told_by_their_flag(client):
    configs = {"U": TopicConfig("U", topic_sys_flag=TOPIC_UNIT), "T": TopicConfig("T")}
    body = encode_registration(RegisterBrokerBody(TopicConfigSerializeWrapper(configs)))
    await client.call(103, RegisterBrokerHeader("broker-0", A, "C", "", 0), body=body)
    assert (await client.call(311)).body == b'{"topicList":["U"]}'
    assert (await client.call(312)).body == (await client.call(313)).body == b'{"topicList":[]}'


async def test_write_permission_and_topic_deletion(client):
    await client.register()
    assert (await client.call(205, BrokerNameHeader("broker-0"))).ext == {"wipeTopicCount": "2"}
    assert b'"perm":4' in (await client.call(105, RouteHeader("T1"))).body
    assert (await client.call(327, BrokerNameHeader("broker-0"))).ext == {"addTopicCount": "2"}
    assert b'"perm":6' in (await client.call(105, RouteHeader("T1"))).body
    assert (await client.call(216, TopicInClusterHeader("T1", "C"))).code == 0
    assert (await client.call(105, RouteHeader("T1"))).code == 17
