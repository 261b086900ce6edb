"""Changes of a node's topics by themselves: they come to the same as registering all of them, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_names import A, B, connected, serving

from dledger_namesrv.records import TableLimits
from dledger_namesrv.table import RouteTable
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers import BrokerNodeHeader, RegisterBrokerHeader, RouteHeader, RouteWatchHeader
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    TopicConfigSerializeWrapper,
)
from dledger_remoting.topics import TopicConfig

TERM = 3


def version(counter: int, term: int = TERM) -> DataVersion:
    return DataVersion(term, 0, counter)


def configs(*names: str, queues: int = 4) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, queues, queues) for name in names}


class Registry:
    """A table in which one node has registered two topics as of version 10."""

    def __init__(self, broker_id: int = 0, limits: TableLimits | None = None) -> None:
        self.table = RouteTable(limits=limits)
        self.register(broker_id, A, 10, configs("T1", "T2"))

    def register(self, broker_id: int, address: str, counter: int, topics: dict[str, TopicConfig], term: int = TERM):
        header = RegisterBrokerHeader("broker-0", address, "C", "", broker_id, topics_complete=True)
        body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, version(counter, term)))
        assert not self.table.register(header, body, now_ms=0, connection=1).refusal

    def change(
        self,
        topics: dict[str, TopicConfig],
        *deleted: str,
        base: DataVersion | None = None,
        to: DataVersion | None = None,
        broker_id: int = 0,
        address: str = A,
        now_ms: int = 0,
    ) -> bool:
        changes = TopicChangesBody(base or version(10), to or version(11), topics, list(deleted))
        return self.table.change_topics(BrokerNodeHeader("broker-0", address, "C", broker_id), changes, now_ms=now_ms)


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_new_changed_and_deleted_topics_are_what_the_routes_show(registry: Registry) -> None:
    before = registry.table.version
    assert registry.change(configs("T3") | configs("T1", queues=8), "T2", "never there")
    assert registry.table.topics() == ["T1", "T3"]
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 8
    assert registry.table.data_version("C", A) == version(11)
    assert registry.table.changed_since(("T3",), before)
    assert registry.change(configs("T4"), base=version(11), to=version(12))


def test_what_has_not_changed_costs_nothing(registry: Registry) -> None:
    before = registry.table.route_version("T1")
    assert registry.change(configs("T3"))
    assert registry.table.route_version("T1") == before


@pytest.mark.parametrize(
    "other",
    [
        {"base": version(9)},
        {"base": version(10, TERM - 1), "to": version(11, TERM - 1)},
        {"to": version(11, TERM + 1)},
        {"broker_id": 2},
        {"address": B},
    ],
    ids=["another version", "an older term", "a later term", "another id", "a stranger"],
)
def test_changes_of_something_else_are_refused_and_change_nothing(registry: Registry, other: dict) -> None:
    before = registry.table.version
    assert not registry.change(configs("T3"), "T1", **other)
    assert (registry.table.version, registry.table.topics()) == (before, ["T1", "T2"])


def test_a_leader_that_was_displaced_changes_nothing(registry: Registry) -> None:
    registry.register(0, B, 10, configs("T1", "T2"), term=TERM + 1)
    assert not registry.change(configs("T3"))
    assert registry.table.topics() == ["T1", "T2"]


def test_a_follower_tells_its_version_and_no_topics() -> None:
    registry = Registry(broker_id=2)
    registry.register(0, B, 10, configs("T1", "T9"))
    assert registry.change(configs("T3"), broker_id=2)
    assert registry.table.data_version("C", A) == version(11)
    assert registry.table.topics() == ["T1", "T9"]


def test_changes_count_as_a_sign_of_life(registry: Registry) -> None:
    assert registry.change(configs("T3"), now_ms=100_000)
    assert registry.table.expire(200_000) == []


@pytest.mark.parametrize("edit", ["delete", "wipe"])
def test_what_an_operator_changed_here_holds_until_all_topics_are_registered(registry: Registry, edit: str) -> None:
    if edit == "delete":
        assert registry.table.delete_topic("T1")
    else:
        assert registry.table.set_write_permission("broker-0", writable=False)
    assert not registry.change(configs("T3"))
    registry.register(0, A, 11, configs("T1", "T2", "T3"))
    assert registry.table.topics() == ["T1", "T2", "T3"]
    assert registry.table.route("T1").queue_datas[0].perm == 6
    assert registry.change(configs("T4"), base=version(11), to=version(12))


def test_a_topic_for_which_there_is_no_room_holds_up_what_is_changed_behind_it() -> None:
    """A node tells all that was changed since the last version that was taken."""
    registry = Registry(limits=TableLimits(max_routes=2))
    assert registry.change(configs("T1", queues=6))
    behind = configs("T3") | configs("T1", queues=8)
    assert not registry.change(behind, base=version(11), to=version(13))
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 6
    assert registry.change(behind, "T2", base=version(11), to=version(14))
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 8


names = st.sampled_from(["T1", "T2", "T3", "T4", "T5"])


@given(st.lists(st.dictionaries(names, st.one_of(st.none(), st.integers(1, 9)), max_size=3), max_size=6))
def test_changes_come_to_the_same_as_registering_everything(rounds: list[dict[str, int | None]]) -> None:
    by_changes, whole = Registry(), Registry()
    topics, counter = configs("T1", "T2"), 10
    for round_ in rounds:
        changed = {name: TopicConfig(name, queues, queues) for name, queues in round_.items() if queues is not None}
        deleted = [name for name, queues in round_.items() if queues is None]
        topics = {name: config for name, config in (topics | changed).items() if name not in deleted}
        assert by_changes.change(changed, *deleted, base=version(counter), to=version(counter + 1))
        counter += 1
        whole.register(0, A, counter, topics)
    assert by_changes.table.topics() == whole.table.topics()
    for name in topics:
        assert by_changes.table.route(name) == whole.table.route(name)


async def test_a_name_server_says_that_it_takes_changes_and_wakes_who_waits_for_one(tmp_path) -> None:
    async with serving(tmp_path) as server, connected(server) as broker, connected(server) as client:
        registered = await broker.register(term=TERM)
        assert registered.ext["acceptsTopicChanges"] == "true"
        base = server.table.data_version("C", A)
        client.send(RequestCode.DLEDGER_ROUTE_WATCH, RouteWatchHeader("NEW", server.table.version, 60_000))
        to = DataVersion(base.state_version, base.timestamp, base.counter + 1)
        changes = encode_body(TopicChangesBody(base, to, configs("NEW")))
        header = BrokerNodeHeader("broker-0", A, "C", 0)
        answer = await broker.call(RequestCode.DLEDGER_TOPIC_CHANGES, header, body=changes)
        assert answer.code == ResponseCode.SUCCESS
        assert (await client.receive()).code == ResponseCode.SUCCESS
        assert (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader("NEW"))).code == ResponseCode.SUCCESS
        again = await broker.call(RequestCode.DLEDGER_TOPIC_CHANGES, header, body=changes)
        assert again.code == ResponseCode.BROKER_NOT_EXIST
