"""Single changes of a node's topics have the same effect as a registration of all topics, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_names import A, B, Registry, connected, serving

from dledger_namesrv.records import TableLimits
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers import BrokerNodeHeader
from dledger_remoting.registration import DataVersion, TopicChangesBody
from dledger_remoting.topics import TopicConfig

TERM = 3


def version(counter: int, term: int = TERM) -> DataVersion:
    return DataVersion(term, 0, counter)


def configs(*names: str, queues: int = 4) -> dict[str, TopicConfig]:
    return {name: TopicConfig(name, queues, queues) for name in names}


class Changed:
    """Table in which one node has registered two topics as of version 10."""

    def __init__(self, broker_id: int = 0, limits: TableLimits | None = None) -> None:
        self.registry = Registry(limits=limits)
        self.table = self.registry.table
        self.register(broker_id, A, 10, configs("T1", "T2"))

    def register(self, broker_id: int, address: str, counter: int, topics: dict[str, TopicConfig], term: int = TERM):
        changes = {"term": term, "counter": counter, "topics": topics.values(), "topics_complete": True}
        assert not self.registry.register(broker_id, address, **changes).refusal

    def change(
        self, topics: dict[str, TopicConfig], *deleted: str, base: DataVersion | None = None,
        to: DataVersion | None = None, broker_id: int = 0, address: str = A, now_ms: int = 0,
    ) -> bool:  # fmt: skip
        changes = TopicChangesBody(base or version(10), to or version(11), topics, list(deleted))
        return self.table.change_topics(BrokerNodeHeader("broker-0", address, "C", broker_id), changes, now_ms=now_ms)


@pytest.fixture
def registry() -> Changed:
    return Changed()


def test_routes_show_new_changed_and_deleted_topics(registry: Changed) -> None:
    before = registry.table.version
    assert registry.change(configs("T3") | configs("T1", queues=8), "T2", "never there")
    assert registry.table.topics() == ["T1", "T3"]
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 8
    assert registry.table.data_version("C", A) == version(11)
    assert registry.table.changed_since(("T3",), before)
    unchanged = registry.table.route_version("T1")
    assert registry.change(configs("T4"), base=version(11), to=version(12), now_ms=100_000)
    assert registry.table.route_version("T1") == unchanged
    assert registry.table.expire(200_000) == [], "changes count as a sign of life"


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
def test_changes_of_something_else_are_refused_and_change_nothing(registry: Changed, other: dict) -> None:
    before = registry.table.version
    assert not registry.change(configs("T3"), "T1", **other)
    assert (registry.table.version, registry.table.topics()) == (before, ["T1", "T2"])


def test_a_leader_that_was_displaced_changes_nothing(registry: Changed) -> None:
    registry.register(0, B, 10, configs("T1", "T2"), term=TERM + 1)
    assert not registry.change(configs("T3"))
    assert registry.table.topics() == ["T1", "T2"]


def test_a_follower_tells_its_version_and_no_topics() -> None:
    registry = Changed(broker_id=2)
    registry.register(0, B, 10, configs("T1", "T9"))
    assert registry.change(configs("T3"), broker_id=2)
    assert registry.table.data_version("C", A) == version(11)
    assert registry.table.topics() == ["T1", "T9"]


@pytest.mark.parametrize("edit", ["delete", "wipe"])
def test_an_operators_change_holds_until_all_topics_are_registered(registry: Changed, edit: str) -> None:
    if edit == "delete":
        assert registry.table.delete_topic("T1")
    else:
        assert registry.table.set_write_permission("broker-0", writable=False)
    assert not registry.change(configs("T3"))
    registry.register(0, A, 11, configs("T1", "T2", "T3"))
    assert registry.table.topics() == ["T1", "T2", "T3"]
    assert registry.table.route("T1").queue_datas[0].perm == 6
    assert registry.change(configs("T4"), base=version(11), to=version(12))


def test_a_topic_above_the_limit_holds_up_later_changes() -> None:
    """A node sends all changes since the last version that was accepted."""
    registry = Changed(limits=TableLimits(max_routes=2))
    assert registry.change(configs("T1", queues=6))
    behind = configs("T3") | configs("T1", queues=8)
    assert not registry.change(behind, base=version(11), to=version(13))
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 6
    assert registry.change(behind, "T2", base=version(11), to=version(14))
    assert registry.table.route("T1").queue_datas[0].read_queue_nums == 8


names = st.sampled_from(["T1", "T2", "T3", "T4", "T5"])


@given(st.lists(st.dictionaries(names, st.one_of(st.none(), st.integers(1, 9)), max_size=3), max_size=6))
def test_topic_changes_give_the_same_table_as_full_registrations(rounds: list[dict[str, int | None]]) -> None:
    by_changes, whole = Changed(), Changed()
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


async def test_a_name_server_announces_topic_changes_and_wakes_watches(tmp_path) -> None:
    async with serving(tmp_path) as server, connected(server) as broker, connected(server) as client:
        registered = await broker.register(term=TERM)
        assert registered.ext["acceptsTopicChanges"] == "true"
        base = server.table.data_version("C", A)
        client.watch("NEW", server.table.version)
        to = DataVersion(base.state_version, base.timestamp, base.counter + 1)
        changes = encode_body(TopicChangesBody(base, to, configs("NEW")))
        header = BrokerNodeHeader("broker-0", A, "C", 0)
        answer = await broker.call(RequestCode.DLEDGER_TOPIC_CHANGES, header, body=changes)
        assert answer.code == ResponseCode.SUCCESS
        assert (await client.receive()).code == ResponseCode.SUCCESS
        assert (await client.route("NEW")).code == ResponseCode.SUCCESS
        again = await broker.call(RequestCode.DLEDGER_TOPIC_CHANGES, header, body=changes)
        assert again.code == ResponseCode.BROKER_NOT_EXIST
