"""What routes list of write aliases: names, permissions, whom they leave out, and what makes them go."""

import pytest
from served_names import Client, SlowDisk, connected, is_alone, serving

from dledger_namesrv.table import RouteTable
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import (
    BrokerNodeHeader,
    KVKeyHeader,
    PutKVHeader,
    RegisterBrokerHeader,
    RouteHeader,
    RouteWatchHeader,
)
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    TopicConfigSerializeWrapper,
    encode_registration,
)
from dledger_remoting.route import BrokerData, QueueData, decode_route
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE, TopicConfig

ALIASED = {WRITE_ALIASES_ATTRIBUTE: "true"}
TOPICS = (TopicConfig("T1", 4, 4, attributes=ALIASED), TopicConfig("PLAIN", 4, 4))


def address(number: int) -> str:
    return f"127.0.0.1:1090{number}"


def alias_address(number: int) -> str:
    return f"127.0.0.1:1100{number}"


class Names:
    """A table with short words for what nodes `n<k>` of a group do; node k has connection k."""

    def __init__(self, **options) -> None:
        self.table = RouteTable(**options)
        self.counter = 0

    def register(
        self, number, *, leads=False, term=1, topics=TOPICS, alias=True, members=None, name="b", renamed=None
    ) -> None:  # fmt: skip
        self.counter += 1
        header = RegisterBrokerHeader(
            name, address(number), "C", "", 0 if leads else number + 1, node_id=renamed or f"n{number}",
            alias_number=number if alias else None, alias_addr=alias_address(number) if alias else None,
            member_ids=members,
        )  # fmt: skip
        configs = {topic.topic_name: topic for topic in topics}
        wrapper = TopicConfigSerializeWrapper(configs, DataVersion(term, 0, self.counter))
        assert not self.table.register(header, RegisterBrokerBody(wrapper), now_ms=0, connection=number).refusal

    def aliases(self, topic="T1") -> dict[str, str]:
        route = self.table.route(topic)
        assert route is not None
        return {data.broker_name: data.broker_addrs[0] for data in route.broker_datas if "@" in data.broker_name}


def three() -> Names:
    names = Names()
    names.register(0, leads=True, members="n0,n1,n2")
    names.register(1)
    names.register(2)
    return names


def test_a_route_lists_an_alias_of_every_node_but_the_leader_behind_the_group() -> None:
    names = three()
    route = names.table.route("T1")
    assert route is not None
    assert route.broker_datas == [
        BrokerData("b", "C", {0: address(0), 2: address(1), 3: address(2)}),
        BrokerData("b@n1", "C", {0: alias_address(1)}),
        BrokerData("b@n2", "C", {0: alias_address(2)}),
    ]
    assert route.queue_datas == [QueueData("b", 4, 4, 6), QueueData("b@n1", 0, 1, 2), QueueData("b@n2", 0, 1, 2)]


def test_aliases_come_behind_all_groups() -> None:
    names = three()
    names.register(7, leads=True, name="a")
    names.register(8, leads=True, name="c")
    body = names.table.encoded_route("T1", standard=True)
    assert body is not None
    assert [data.broker_name for data in decode_route(body).broker_datas] == ["a", "b", "c", "b@n1", "b@n2"]
    assert [data.broker_name for data in decode_route(body).queue_datas] == ["a", "b", "c", "b@n1", "b@n2"]


def test_a_topic_without_the_attribute_has_none() -> None:
    assert three().aliases("PLAIN") == {}


@pytest.mark.parametrize(
    "ordered",
    [
        TopicConfig("T1", 4, 4, order=True, attributes=ALIASED),
        TopicConfig("T1", 4, 4, attributes=ALIASED | {"message.type": "FIFO"}),
    ],
    ids=["order", "FIFO"],
)
def test_an_ordered_topic_has_none_whatever_its_broker_says(ordered: TopicConfig) -> None:
    names = three()
    names.register(0, leads=True, topics=(ordered, TOPICS[1]))
    assert names.aliases() == {}


def test_a_node_that_has_gone_is_listed_and_the_one_that_stands_in_for_a_leader_is_not() -> None:
    names = three()
    names.table.drop_connection(0)
    assert names.aliases() == {"b@n0": alias_address(0), "b@n2": alias_address(2)}
    names.table.drop_connection(1)
    assert names.aliases() == {"b@n0": alias_address(0), "b@n1": alias_address(1)}


def test_a_node_that_becomes_the_leader_is_not_listed_and_the_former_one_is() -> None:
    names = three()
    names.register(1, leads=True, term=2, members="n0,n1,n2")
    assert names.aliases() == {"b@n0": alias_address(0), "b@n2": alias_address(2)}


def test_aliases_stay_while_one_node_after_the_other_is_killed_and_starts_without_knowing_any_topic() -> None:
    """A node registers in the term of its disk and without topics, then in that of its leader, then with all topics."""
    names = three()
    leader, everybody = 0, {"b@n0", "b@n1", "b@n2"}
    for term in range(2, 8):
        killed, leader = leader, (leader + 1) % 3
        names.table.drop_connection(killed)
        assert len(names.aliases()) == 2
        names.register(leader, leads=True, term=term, members="n0,n1,n2")
        for known_term, topics in ((term - 1, ()), (term, ()), (term, TOPICS)):
            names.register(killed, term=known_term, topics=topics)
            assert names.aliases().keys() == everybody - {f"b@n{leader}"}


def test_a_node_that_is_no_member_any_more_is_forgotten() -> None:
    names = three()
    names.table.drop_connection(2)
    names.register(0, leads=True, members="n0,n1")
    assert names.aliases() == {"b@n1": alias_address(1)}


def test_a_node_that_tells_of_no_alias_has_none_and_one_that_moves_has_one() -> None:
    names = three()
    names.register(1, alias=False)
    assert names.aliases() == {"b@n2": alias_address(2)}
    names.register(5, renamed="n2")
    assert names.aliases() == {"b@n5": alias_address(5)}


def test_permissions_follow_the_groups() -> None:
    names = three()
    assert names.table.set_write_permission("b", writable=False) == len(TOPICS)
    assert names.aliases() == {}
    names.table.set_write_permission("b", writable=True)
    assert sorted(names.aliases()) == ["b@n1", "b@n2"]
    names.register(0, leads=True, topics=(TopicConfig("T1", 4, 4, perm=4, attributes=ALIASED), TOPICS[1]))
    assert names.aliases() == {}


def test_the_attribute_can_be_set_and_taken_off_and_watches_see_it() -> None:
    names = three()
    known = names.counter
    for attributes, expected in (({}, []), (ALIASED, ["b@n1", "b@n2"])):
        version = names.table.route_version("T1")
        base = names.table.data_version("C", address(0))
        assert base is not None
        known += 1
        changes = TopicChangesBody(
            base, DataVersion(1, 0, known), {"T1": TopicConfig("T1", 4, 4, attributes=attributes)}
        )
        assert names.table.change_topics(BrokerNodeHeader("b", address(0), "C", 0), changes, now_ms=0)
        assert sorted(names.aliases()) == expected
        assert names.table.changed_since(["T1"], version)


def test_no_list_shows_aliases_but_the_route() -> None:
    names = three()
    assert list(names.table.cluster_info().broker_addr_table) == ["b"]
    assert names.table.cluster_info().cluster_addr_table == {"C": ["b"]}
    assert names.table.members("b") == {0: address(0), 2: address(1), 3: address(2)}
    assert names.table.topics() == ["PLAIN", "T1"]


def test_a_group_that_comes_back_has_the_aliases_of_nodes_that_do_not() -> None:
    names = three()
    for number in range(3):
        names.table.drop_connection(number)
    after = Names(absent=names.table.known_groups())
    after.register(2, leads=True, term=2, members="n0,n1,n2")
    assert after.aliases() == {"b@n0": alias_address(0), "b@n1": alias_address(1)}


def test_one_group_has_no_more_aliases_than_the_limit(monkeypatch) -> None:
    monkeypatch.setattr("dledger_namesrv.aliases.MAX_ALIASES", 2)
    names = three()
    assert names.aliases() == {"b@n1": alias_address(1)}
    names.register(1)
    assert names.aliases() == {"b@n1": alias_address(1)}


def test_a_topic_that_is_ordered_by_an_operators_word_has_none_until_it_is_no_longer() -> None:
    names = three()
    for ordered, expected in ((["T1", "elsewhere"], []), (["elsewhere"], ["b@n1", "b@n2"])):
        version, before = names.table.route_version("T1"), names.table.encoded_route("T1", standard=True)
        names.table.set_ordered(ordered)
        assert sorted(names.aliases()) == expected
        assert names.table.changed_since(["T1"], version), "watches see it"
        assert names.table.encoded_route("T1", standard=True) != before
        assert not names.table.changed_since(["PLAIN"], version)


async def lists_aliases(client: Client) -> bool:
    """Whether the route of T1 does, once two nodes have registered it."""
    wrapper = TopicConfigSerializeWrapper({topic.topic_name: topic for topic in TOPICS}, DataVersion(1, 0, 9))
    for number in (0, 1):
        header = RegisterBrokerHeader(
            "b", address(number), "C", "", number, node_id=f"n{number}", alias_number=number,
            alias_addr=alias_address(number),
        )  # fmt: skip
        body = encode_registration(RegisterBrokerBody(wrapper))
        assert (await client.call(RequestCode.REGISTER_BROKER, header, body=body)).code == 0
    return b"b@n1" in (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader("T1"))).body


async def test_the_value_of_an_ordered_topic_takes_its_aliases_off_over_a_restart_too(tmp_path) -> None:
    """`updateTopic -o true` writes it; `updateTopicPerm` then registers the topic as one that is not ordered."""
    async with serving(tmp_path) as server, connected(server) as client:
        assert await lists_aliases(client)
        value = PutKVHeader("ORDER_TOPIC_CONFIG", "T1", "b:4")
        assert (await client.call(RequestCode.PUT_KV_CONFIG, value)).code == 0
        assert not await lists_aliases(client)
    async with serving(tmp_path) as server, connected(server) as client:
        assert not await lists_aliases(client)
        key = KVKeyHeader("ORDER_TOPIC_CONFIG", "T1")
        assert (await client.call(RequestCode.DELETE_KV_CONFIG, key)).code == 0
        assert await lists_aliases(client)


@pytest.mark.parametrize("code", [RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG])
async def test_a_value_of_an_ordered_topic_counts_though_who_changed_it_left_before_the_answer(
    tmp_path, slow_disk: SlowDisk, code
) -> None:
    """A slow disk, and a client whose time is up: it is stored all the same, and 101 tells it."""
    value, key = PutKVHeader("ORDER_TOPIC_CONFIG", "T1", "b:4"), KVKeyHeader("ORDER_TOPIC_CONFIG", "T1")
    is_put = code == RequestCode.PUT_KV_CONFIG
    async with serving(tmp_path) as server, connected(server) as client:
        if not is_put:
            assert (await client.call(RequestCode.PUT_KV_CONFIG, value)).code == 0
        assert await lists_aliases(client) == is_put
        slow_disk.begin()
        version = server.table.version
        async with connected(server) as leaver:
            leaver.send(code, value if is_put else key)
            await slow_disk.writing.wait()
        await is_alone(server)
        watch = client.send(RequestCode.DLEDGER_ROUTE_WATCH, RouteWatchHeader("T1", version, 60_000))
        slow_disk.go_on.set()
        assert (await client.receive()).opaque == watch
        assert (await client.call(RequestCode.GET_KV_CONFIG, key)).code == (0 if is_put else 22)
        assert await lists_aliases(client) != is_put
