"""Write aliases in routes: names, permissions, the nodes that are left out, and reasons for a removal."""

import pytest
from served_names import Client, Registry, SlowDisk, connected, is_alone, serving

from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import BrokerNodeHeader, KVKeyHeader, PutKVHeader
from dledger_remoting.registration import DataVersion, TopicChangesBody
from dledger_remoting.route import BrokerData, QueueData, decode_route
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE, TopicConfig

ALIASED = {WRITE_ALIASES_ATTRIBUTE: "true"}
TOPICS = (TopicConfig("T1", 4, 4, attributes=ALIASED), TopicConfig("PLAIN", 4, 4))


def address(number: int) -> str:
    return f"127.0.0.1:1090{number}"


def alias_address(number: int) -> str:
    return f"127.0.0.1:1100{number}"


def node(
    names: Registry, number, *, leads=False, alias=True, renamed=None, members=None, topics=TOPICS, name="b", **options
) -> None:
    """Register node `n<k>` of a group by connection k."""
    if alias:
        options |= {"alias_number": number, "alias_addr": alias_address(number)}
    registered = names.register(
        0 if leads else number + 1, address(number), connection=number, node_id=renamed or f"n{number}",
        member_ids=members, topics=topics, name=name, **options,
    )  # fmt: skip
    assert not registered.refusal


def aliases(names: Registry) -> dict[str, str]:
    return {name: addresses[0] for name, addresses in names.addresses().items() if "@" in name}


def group_of_three() -> Registry:
    """Return a group of three nodes, of which the first leads."""
    names = Registry()
    node(names, 0, leads=True, members="n0,n1,n2")
    node(names, 1)
    node(names, 2)
    return names


@pytest.fixture
def names() -> Registry:
    return group_of_three()


def test_a_route_lists_an_alias_of_every_node_but_the_leader_behind_the_group(names: Registry) -> None:
    route = names.table.route("T1")
    assert route is not None
    assert route.broker_datas == [
        BrokerData("b", "C", {0: address(0), 2: address(1), 3: address(2)}),
        BrokerData("b@n1", "C", {0: alias_address(1)}),
        BrokerData("b@n2", "C", {0: alias_address(2)}),
    ]
    assert route.queue_datas == [QueueData("b", 4, 4, 6), QueueData("b@n1", 0, 1, 2), QueueData("b@n2", 0, 1, 2)]
    # Aliases appear only in routes, behind all groups.
    assert list(names.table.cluster_info().broker_addr_table) == ["b"]
    assert names.table.cluster_info().cluster_addr_table == {"C": ["b"]}
    assert names.table.members("b") == {0: address(0), 2: address(1), 3: address(2)}
    assert names.table.topics() == ["PLAIN", "T1"]
    node(names, 7, leads=True, name="a")
    node(names, 8, leads=True, name="c")
    body = names.table.encoded_route("T1", standard=True)
    assert body is not None
    assert [data.broker_name for data in decode_route(body).broker_datas] == ["a", "b", "c", "b@n1", "b@n2"]
    assert [data.broker_name for data in decode_route(body).queue_datas] == ["a", "b", "c", "b@n1", "b@n2"]


@pytest.mark.parametrize(
    "ordered",
    [
        TopicConfig("T1", 4, 4, order=True, attributes=ALIASED),
        TopicConfig("T1", 4, 4, attributes=ALIASED | {"message.type": "FIFO"}),
    ],
    ids=["order", "FIFO"],
)
def test_an_ordered_topic_has_no_write_aliases(names: Registry, ordered: TopicConfig) -> None:
    node(names, 0, leads=True, topics=(ordered, TOPICS[1]))
    assert aliases(names) == {}


def test_aliases_include_a_departed_node_and_exclude_the_acting_leader(names: Registry) -> None:
    names.table.drop_connection(0)
    assert aliases(names) == {"b@n0": alias_address(0), "b@n2": alias_address(2)}
    names.table.drop_connection(1)
    assert aliases(names) == {"b@n0": alias_address(0), "b@n1": alias_address(1)}


def test_aliases_stay_while_nodes_are_killed_and_restarted_in_turn(names: Registry) -> None:
    """A node registers in its disk's term without topics, then in its leader's term, and then with all topics."""
    leader, everybody = 0, {"b@n0", "b@n1", "b@n2"}
    for term in range(2, 8):
        killed, leader = leader, (leader + 1) % 3
        names.table.drop_connection(killed)
        assert len(aliases(names)) == 2
        node(names, leader, leads=True, term=term, members="n0,n1,n2")
        for known_term, topics in ((term - 1, ()), (term, ()), (term, TOPICS)):
            node(names, killed, term=known_term, topics=topics)
            assert aliases(names).keys() == everybody - {f"b@n{leader}"}


def test_members_with_an_alias_port_have_aliases_also_if_they_are_renamed(names: Registry) -> None:
    node(names, 1, alias=False)
    assert aliases(names) == {"b@n2": alias_address(2)}
    node(names, 5, renamed="n2")
    assert aliases(names) == {"b@n5": alias_address(5)}
    node(names, 1)
    names.table.drop_connection(5)
    node(names, 0, leads=True, members="n0,n1")
    assert aliases(names) == {"b@n1": alias_address(1)}


def test_permissions_follow_the_groups(names: Registry) -> None:
    assert names.table.set_write_permission("b", writable=False) == len(TOPICS)
    assert aliases(names) == {}
    names.table.set_write_permission("b", writable=True)
    assert sorted(aliases(names)) == ["b@n1", "b@n2"]
    node(names, 0, leads=True, topics=(TopicConfig("T1", 4, 4, perm=4, attributes=ALIASED), TOPICS[1]))
    assert aliases(names) == {}


def test_setting_and_clearing_the_alias_attribute_changes_the_route(names: Registry) -> None:
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
        assert sorted(aliases(names)) == expected
        assert names.table.changed_since(["T1"], version)


def test_a_returning_group_has_aliases_of_its_absent_nodes(names: Registry) -> None:
    for number in range(3):
        names.table.drop_connection(number)
    after = Registry(absent=names.table.known_groups())
    node(after, 2, leads=True, term=2, members="n0,n1,n2")
    assert aliases(after) == {"b@n0": alias_address(0), "b@n1": alias_address(1)}


def test_the_aliases_of_a_group_are_limited(monkeypatch) -> None:
    monkeypatch.setattr("dledger_namesrv.aliases.MAX_ALIASES", 2)
    names = group_of_three()
    assert aliases(names) == {"b@n1": alias_address(1)}
    node(names, 1)
    assert aliases(names) == {"b@n1": alias_address(1)}


def test_a_topic_ordered_by_an_operator_has_no_aliases_meanwhile(names: Registry) -> None:
    for ordered, expected in ((["T1", "elsewhere"], []), (["elsewhere"], ["b@n1", "b@n2"])):
        version, before = names.table.route_version("T1"), names.table.encoded_route("T1", standard=True)
        names.table.set_ordered(ordered)
        assert sorted(aliases(names)) == expected
        assert names.table.changed_since(["T1"], version), "watches see it"
        assert names.table.encoded_route("T1", standard=True) != before
        assert not names.table.changed_since(["PLAIN"], version)


async def lists_aliases(client: Client) -> bool:
    """Register T1 by two nodes, and return whether its route lists aliases."""
    for number in (0, 1):
        alias = {"node_id": f"n{number}", "alias_number": number, "alias_addr": alias_address(number)}
        assert (await client.register(number, address(number), name="b", topics=TOPICS, **alias)).code == 0
    return b"b@n1" in (await client.route()).body


async def test_the_value_of_an_ordered_topic_takes_its_aliases_off_over_a_restart_too(tmp_path) -> None:
    """`updateTopic -o true` writes the value. `updateTopicPerm` then registers the topic as not ordered."""
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
async def test_an_ordered_topic_value_counts_although_its_client_left(tmp_path, slow_disk: SlowDisk, code) -> None:
    """With a slow disk the client gives up. The value is stored all the same, and 101 returns it."""
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
        watch = client.watch("T1", version)
        slow_disk.go_on.set()
        assert (await client.receive()).opaque == watch
        assert (await client.call(RequestCode.GET_KV_CONFIG, key)).code == (0 if is_put else 22)
        assert await lists_aliases(client) != is_put
