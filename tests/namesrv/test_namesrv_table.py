"""The route registry alone: registration, fencing by term, removal, routes, versions. Time is a number."""

import itertools

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from served_names import A, B, C, Registry, registration

from dledger_namesrv import table as tables
from dledger_namesrv import topics
from dledger_namesrv.owners import RETURN_MS
from dledger_namesrv.records import NodeKey, Registered, TableLimits
from dledger_namesrv.table import RouteTable
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import SLICE_TOPICS, DataVersion
from dledger_remoting.route import decode_route

TOPICS = ("T1", "TBW102")


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_follower_learns_its_leader_and_brings_no_topics(registry):
    registry.register(2, B, topics=("OTHER", "T9"))
    assert registry.table.topics() == []
    registry.register(0, A)
    assert registry.register(2, B) == Registered("", A, f"{A}-ha")
    assert registry.addresses() == {"broker-0": {0: A, 2: B}}


def test_the_lowest_follower_brings_topics_where_acting_masters_are_on(registry):
    registry.register(2, B, topics=("T1", "T2"), enable_acting_master=True)
    registry.register(3, C, topics=("T8", "T9"), enable_acting_master=True)
    assert registry.table.topics() == ["T1", "T2"]


def test_an_older_term_does_not_displace_the_leader(registry):
    registry.register(0, B, term=5)
    refused = registry.register(0, A, term=4)
    assert "term 4 is older than 5" in refused.refusal
    assert registry.members() == {0: B}
    assert registry.register(2, B, term=4).refusal, "its own registration as a follower comes late"
    assert registry.members() == {0: B}
    assert registry.register(0, A, term=6) == Registered()
    assert registry.members() == {0: A}


def test_an_older_leader_does_not_come_back_while_the_newer_one_is_away(registry):
    registry.register(0, B, term=5, connection=1)
    registry.register(2, C, term=5, connection=2)
    assert "belongs to" in registry.register(2, A, term=4).refusal, "the id is taken"
    registry.table.drop_connection(1)
    assert registry.register(0, A, term=4).refusal
    assert registry.members() == {2: C}


def test_a_late_goodbye_does_not_remove_a_newer_registration(registry):
    registry.register(0, A, term=5)
    assert not registry.table.unregister("broker-0", "C", A, 2)
    assert not registry.table.unregister("broker-0", "C", B, 0)
    assert not registry.table.unregister("broker-0", "C", A, 0, term=4)
    assert registry.members() == {0: A}
    assert registry.table.unregister("broker-0", "C", A, 0, term=5)
    assert registry.members() == {}


def test_the_loss_of_an_old_connection_does_not_remove_a_node_that_came_back(registry):
    registry.register(0, A, connection=1)
    registry.register(0, A, connection=2)
    assert registry.table.drop_connection(1) == []
    assert registry.members() == {0: A}
    assert registry.table.drop_connection(2) == [NodeKey("C", A)]
    assert registry.table.topics() == []


def test_a_silent_node_expires_after_its_own_timeout_since_its_last_heartbeat(registry):
    registry.register(0, A, now=0, timeout=15_000)
    registry.register(2, B, now=0)
    assert registry.table.refresh("C", A, 900)
    assert not registry.table.refresh("C", C, 900)
    assert registry.table.expire(15_900) == []
    assert registry.table.expire(15_901) == [NodeKey("C", A)]
    assert registry.members() == {2: B}
    assert registry.table.expire(120_000) == []
    assert registry.table.expire(120_001) == [NodeKey("C", B)]
    assert registry.table.node_count == 0


def test_a_half_started_broker_is_refused(registry):
    assert "single topic" in registry.register(0, A, topics=("T1",)).refusal
    registry.register(0, A)
    assert registry.register(0, A, topics=("T3",)) == Registered()
    assert registry.table.topics() == ["T1", "T3", "TBW102"]


def test_topics_missing_in_a_registration_stay_unless_deletion_is_configured():
    keeping, deleting = Registry(), Registry(delete_missing_topics=True)
    for registry in (keeping, deleting):
        registry.register(0, A)
        registry.register(0, A, topics=("T1", "T2"))
    assert keeping.table.topics() == ["T1", "T2", "TBW102"]
    assert deleting.table.topics() == ["T1", "T2"]


def test_topics_missing_in_a_complete_registration_are_deleted_for_good(registry):
    """A name server that missed a deletion learns of it from the broker."""
    registry.register(0, A, topics=("T1", "T2", "T3"), topics_complete=True)
    registry.register(0, A, topics=("T2", "T3"), topics_complete=True)
    assert registry.table.topics() == ["T2", "T3"]
    registry.counter -= 2
    assert registry.register(0, A, topics=("T1", "T2", "T3"), topics_complete=True) == Registered()
    assert registry.table.topics() == ["T2", "T3"]
    registry.register(0, B, term=2, topics=("T1", "T3"), topics_complete=True)
    assert registry.table.topics() == ["T1", "T3"]


def test_a_group_that_moves_to_another_cluster_leaves_nothing_behind(registry):
    registry.register(0, A, timeout=1000)
    registry.register(2, B, timeout=1000)
    registry.register(0, A, cluster="D", now=500, timeout=1000)
    registry.register(2, B, cluster="D", now=500, timeout=1000)
    assert registry.table.cluster_info().cluster_addr_table == {"D": ["broker-0"]}
    assert registry.table.node_count == 2
    assert registry.table.expire(1400) == [], "what was said of the same nodes before has no end of its own"
    assert registry.members() == {0: A, 2: B}
    assert not registry.table.unregister("broker-0", "C", A, 0)
    assert registry.table.expire(1600) == [NodeKey("D", A), NodeKey("D", B)]
    assert registry.table.topics() == []


@pytest.mark.parametrize(
    ("first", "second", "is_other"),
    [
        ({}, {"cluster": "D"}, True),
        ({"group_identity": "9f"}, {"cluster": "D"}, True),
        ({"group_identity": "9f"}, {"group_identity": "3c"}, True),
        ({"group_identity": "9f"}, {"group_identity": "9f", "cluster": "D"}, False),
        ({}, {"group_identity": "3c"}, False),
    ],
)
def test_another_group_of_a_name_is_refused_while_a_node_of_the_first_is_there(registry, first, second, is_other):
    table = registry.table
    registry.register(0, A, **first)
    registry.register(2, B, connection=2)
    refused = registry.register(0, C, term=9, now=1, connection=3, **second)
    assert ("belongs to a broker group of cluster C" in refused.refusal) == is_other
    assert list(table.cluster_info(include_absent=True).refused_groups or ()) == ["broker-0"] * is_other
    assert registry.members() == {0: A if is_other else C, 2: B}
    assert table.cluster_info().refused_groups is None, "stock clients are not told"
    if is_other:
        table.drop_connection(1)
        table.drop_connection(2)
        assert registry.register(0, C, now=RETURN_MS, **second).refusal, "the first may have lost its connections only"
        assert not registry.register(0, C, now=RETURN_MS + 1, **second).refusal
        assert table.cluster_info(include_absent=True).refused_groups == {}
        assert registry.register(0, A, term=99, now=RETURN_MS + 2, **first).refusal


def test_a_rescued_group_takes_its_name_over_at_any_term(registry):
    founding = "9f" * 16
    registry.register(0, A, term=9, group_identity=founding)
    registry.register(2, B, term=9, group_identity=founding)
    assert not registry.register(0, C, term=3, topics=("T1", "T2"), group_identity=f"{founding}.2").refusal
    assert registry.members() == {0: C}
    for address in (A, B):
        refused = registry.register(0, address, term=99, group_identity=founding)
        assert "was rescued without this node" in refused.refusal
    assert (registry.members(), registry.table.topics()) == ({0: C}, ["T1", "T2"])


def test_a_refused_registration_of_a_rescued_group_leaves_the_name_with_its_owner(registry):
    founding, table = "9f" * 16, registry.table
    rescued = {"term": 3, "group_identity": f"{founding}.2"}
    registry.register(0, A, term=9, topics=("T1", "T2"), group_identity=founding)
    table._limits = msgspec.structs.replace(table._limits, max_routes=3)
    assert registry.register(0, C, topics=("T1", "T2", "T3", "T4"), **rescued).limit == "max_routes"
    assert (registry.members(), table.topics()) == ({0: A}, ["T1", "T2"])
    table._limits = msgspec.structs.replace(table._limits, max_routes=9, max_nodes=1)
    assert not registry.register(0, C, topics=("T1", "T2"), **rescued).refusal
    assert registry.members() == {0: C}


def test_a_name_can_be_given_to_the_rival_group_that_asked(registry):
    table = registry.table
    registry.register(0, A)
    assert not table.give_to_rival("broker-0")
    registry.register(0, C, cluster="D", topics=("T9",))
    assert table.give_to_rival("broker-0")
    assert table.topics(include_absent=True) == []
    assert registry.register(0, A, now=1).refusal
    assert not registry.register(0, C, cluster="D", topics=("T9", "TBW102"), now=2).refusal
    assert (registry.members(), table.topics()) == ({0: C}, ["T9", "TBW102"])


def test_a_group_keeps_its_name_over_a_restart_of_the_name_server(registry):
    registry.register(0, A, group_identity="9f")
    again = Registry(absent=registry.table.known_groups())
    assert again.register(0, C, cluster="D", now=5).refusal
    assert not again.register(0, B, group_identity="9f", now=6).refusal


def test_topics_of_a_lost_group_vanish_at_once_and_are_tidied_in_slices(registry, monkeypatch):
    monkeypatch.setattr(topics, "TIDIED_AT_ONCE", 10)
    table, many = registry.table, [f"T{number}" for number in range(100)]
    registry.register(0, A, topics=many)
    registry.register(0, B, name="broker-1", topics=["T1", "T100"], connection=2)
    before = {topic: table.route_version(topic) for topic in ("T1", "T2")}
    table.drop_connection(1)
    assert (table.topics(), table.route_count, table.route("T2")) == (["T1", "T100"], 2, None)
    assert registry.addresses("T1") == {"broker-1": {0: B}}
    assert all(table.changed_since([topic], version) for topic, version in before.items())
    left = [table.topic_count]
    while table.tidy():
        left.append(table.topic_count)
    assert [former - count for former, count in itertools.pairwise(left)] == [9, *[10] * 9]
    after = table.version
    registry.register(0, A, topics=many)
    assert table.changed_since(["T2"], after)


def test_a_group_lost_during_its_registration_keeps_its_earlier_topics(registry, monkeypatch):
    monkeypatch.setattr(tables, "SLICE_TOPICS", 2)
    table, many = registry.table, [f"T{number}" for number in range(5)]
    registry.register(0, A, topics=many)
    table.drop_connection(1)
    known = table.known_groups()
    header = RegisterBrokerHeader("broker-0", A, "C", f"{A}-ha", 0)
    next(table.register_steps(header, registration(many, DataVersion(1, 0, 9)), now_ms=0, connection=2))
    assert table.topics() == ["T0"]
    assert table.known_groups() == known
    table.drop_connection(2)
    assert table.known_groups() == known


def test_a_group_with_acting_masters_is_shown_as_by_rocketmqs_name_servers(registry):
    """Without a master, the node with the lowest id is listed as id 0, for reads only.

    RocketMQ's `RouteInfoManager` does the same with `supportActingMaster`.
    """
    members = "rmq_sys_SYNC_BROKER_MEMBER_broker-0"
    options = {"topics": ("T1", members), "enable_acting_master": True}
    registry.register(0, A, connection=1, **options)
    registry.register(2, B, connection=2, **options)
    registry.register(3, C, connection=3, **options)

    def shown(topic="T1"):
        route = registry.table.route(topic)
        return route.queue_datas[0].perm, route.broker_datas[0].broker_addrs

    assert shown() == (6, {0: A, 2: B, 3: C})
    registry.table.drop_connection(1)
    assert shown() == (4, {0: B, 3: C})
    assert shown(members) == (4, {2: B, 3: C})
    registry.register(2, B, connection=2, **options)
    assert shown() == (4, {0: B, 3: C})
    registry.register(0, A, connection=1, **options)
    assert shown() == (6, {0: A, 2: B, 3: C})


def test_encoded_routes_are_stable_and_cached_until_the_route_changes(registry):
    table = registry.table
    registry.register(0, A)
    first = table.encoded_route("T1", standard=True)
    registry.register(2, B, name="broker-1", topics=("T8", "T9"))
    table.refresh("C", A, 5)
    assert table.encoded_route("T1", standard=True) is first
    registry.register(2, B)
    second = table.encoded_route("T1", standard=True)
    assert second is not None
    assert decode_route(second) == table.route("T1")
    assert table.encoded_route("T1", standard=False) != second
    assert table.encoded_route("X", standard=True) is None
    table.delete_topic("T1")
    assert table.encoded_route("T1", standard=True) is None
    registry.register(0, C)
    assert decode_route(table.encoded_route("T1", standard=True)) == table.route("T1")
    assert registry.addresses() == {"broker-0": {0: C, 2: B}}


def test_versions_tell_which_routes_have_changed(registry):
    table = registry.table
    registry.register(0, A)
    registry.register(0, B, name="broker-1", topics=("T8", "T9"))
    seen = table.version
    registry.register(0, A)
    assert not table.changed_since(["T1", "T8", "X"], seen)
    registry.register(2, C)
    assert table.changed_since(["T8", "T1"], seen)
    assert not table.changed_since(["T8"], seen)
    seen = table.version
    registry.register(0, A, topics=("T1", "T2"))
    assert table.changed_since(["T2"], seen)
    assert not table.changed_since(["T1"], seen)
    seen = table.version
    table.delete_topic("T1")
    assert table.changed_since(["T1"], seen)
    assert table.changed_since(["T8"], table.version + 1), "a version of another server"


def test_an_absent_group_is_reported_on_request_until_its_leader_returns(registry):
    table = registry.table
    registry.register(0, A, connection=1)
    registry.register(0, B, connection=2, name="broker-1", topics=("T1", "T2"))
    table.drop_connection(2)
    assert (table.topics(), table.route("T2"), registry.addresses()) == (["T1", "TBW102"], None, {"broker-0": {0: A}})
    assert list(table.cluster_info().broker_addr_table) == ["broker-0"]
    assert table.topics(include_absent=True) == ["T1", "T2", "TBW102"]
    for topic, groups in (("T1", ["broker-0", "broker-1"]), ("T2", ["broker-1"]), ("TBW102", ["broker-0"])):
        route = table.route(topic, include_absent=True)
        assert [queues.broker_name for queues in route.queue_datas] == groups
        assert decode_route(table.encoded_route(topic, standard=True, include_absent=True)) == route
    info = table.cluster_info(include_absent=True)
    assert info.broker_addr_table["broker-1"].broker_addrs == {}
    assert info.cluster_addr_table["C"] == ["broker-0", "broker-1"]
    assert (table.group_count, table.absent_group_count) == (1, 1)
    seen = table.version
    registry.register(2, C, name="broker-1", topics=("T1", "T2"))  # topics of a follower do not count
    assert table.route("T2") is None
    assert table.changed_since(["T2"], seen)
    assert table.route("T2", include_absent=True).broker_datas[0].broker_addrs == {0: C, 2: C}
    registry.register(0, B, term=2, name="broker-1", topics=("T1", "T3"))
    assert table.route("T2", include_absent=True) is None
    assert registry.addresses() == {"broker-0": {0: A}, "broker-1": {0: B, 2: C}}
    assert table.absent_group_count == 0


def test_a_group_is_still_known_after_its_followers_came_and_went_until_it_is_forgotten(registry):
    table = registry.table
    registry.register(0, A)
    registry.register(0, B, name="broker-1", connection=2)
    assert not table.forget_group("broker-1"), "it has a live node"
    table.unregister("broker-1", "C", B, 0)
    registry.register(1, C, name="broker-1")
    table.unregister("broker-1", "C", C, 1)
    assert list(table.cluster_info(include_absent=True).broker_addr_table) == ["broker-0", "broker-1"]
    seen = table.version
    assert table.forget_group("broker-1")
    assert table.changed_since(["T1"], seen)
    assert table.route("T1", include_absent=True) == table.route("T1")
    assert not table.forget_group("broker-1")


def test_a_topic_is_deleted_in_absent_groups_too(registry):
    table = registry.table
    registry.register(0, A)
    registry.register(0, B, name="broker-1", cluster="D", connection=2)
    table.drop_connection(2)
    seen = table.version
    assert not table.delete_topic("T1", "E")
    assert table.delete_topic("T1", "D")
    assert table.changed_since(["T1"], seen)
    assert table.route("T1", include_absent=True) == table.route("T1")
    assert table.delete_topic("T1")
    assert table.topics(include_absent=True) == ["TBW102"]


@pytest.mark.parametrize(
    ("limits", "groups", "kept"),
    [({"max_absent_groups": 3}, 5, [2, 3, 4]), ({"max_routes": 5}, 4, [2, 3])],
    ids=["groups", "topics"],
)
def test_the_groups_and_topics_that_are_remembered_have_a_limit(limits, groups, kept):
    registry = Registry(limits=TableLimits(**limits))
    for number in range(groups):
        registry.register(0, f"127.0.0.1:{number}", name=f"broker-{number}", connection=number)
        registry.table.drop_connection(number)
    assert list(registry.table.known_groups()) == [f"broker-{number}" for number in kept]
    assert registry.table.absent_groups_forgotten == 2


def test_nodes_above_the_limit_are_refused_and_registered_nodes_stay():
    registry = Registry(limits=TableLimits(max_nodes=2))
    registry.register(0, A, term=1)
    registry.register(2, B, term=1)
    refused = registry.register(3, C, term=1)
    assert (refused.limit, refused.refusal) == ("max_nodes", "there would be more than max_nodes = 2")
    assert registry.register(0, C, name="broker-1").limit == "max_nodes"
    assert not registry.register(0, B, term=2).refusal
    assert not registry.register(0, C, term=3).refusal, "who takes the place of another node is no more"
    assert registry.members() == {0: C}
    assert not registry.register(0, A, name="broker-1").refusal


def test_topics_above_the_limit_are_refused_and_registered_topics_stay():
    registry = Registry(limits=TableLimits(max_routes=5))
    registry.register(0, A)
    assert not registry.register(0, B, name="broker-1", topics=("T1", "T2", "T3")).refusal
    assert registry.table.route_count == 5
    refused = registry.register(0, A, topics=("T1", "T2", "TBW102"))
    assert (refused.limit, refused.refusal) == ("max_routes", "there would be more than max_routes = 5")
    assert registry.table.topics() == ["T1", "T2", "T3", "TBW102"]
    assert not registry.register(0, A).refusal
    assert not registry.register(0, A, topics=("T1", "T9"), topics_complete=True).refusal
    assert (registry.table.route_count, registry.addresses("T9")) == (5, {"broker-0": {0: A}})
    registry.table.unregister("broker-1", "C", B, 0)
    assert registry.table.route_count == 2
    assert not registry.register(0, A, topics=("T1", "T2", "T3", "T4", "T5"), topics_complete=True).refusal


def test_a_leader_above_the_topic_limit_stays_an_acting_leader_until_there_is_room():
    registry = Registry(limits=TableLimits(max_routes=2))
    registry.register(0, A, topics=("T1", "T2"), connection=1)
    registry.register(2, B, topics=("T1", "T2"), connection=2)
    registry.table.drop_connection(1)
    more = {"term": 2, "topics": ("T1", "T2", "T3"), "connection": 2}
    assert registry.register(0, B, **more).limit == "max_routes"
    assert (registry.members(), registry.addresses()) == ({2: B}, {"broker-0": {0: B, 2: B}})
    registry.table.delete_topic("T2")
    assert not registry.register(0, B, **(more | {"topics": ("T1", "T3")})).refusal
    assert registry.members() == {0: B}


NAMES = st.sampled_from(["broker-0", "broker-1"])
ADDRESSES = st.sampled_from([A, B, C])


class AnyHistory(RuleBasedStateMachine):
    """Random histories of brokers and the clock keep the promises of the table.

    Data of lost groups is removed step by step.
    """

    def __init__(self):
        super().__init__()
        topics.TIDIED_AT_ONCE = 1
        self.registry = Registry()
        self.now = 0
        self.leader_terms: dict[str, int] = {}
        self.routes: dict[str, tuple] = {}

    @rule(
        name=NAMES, broker_id=st.integers(0, 3), address=ADDRESSES, term=st.integers(1, 5),
        connection=st.integers(1, 4), timeout=st.sampled_from([None, 100]), cluster=st.sampled_from("CD"),
        topics=st.sampled_from([TOPICS, ("T1", "T2"), ("T3",)]),
    )  # fmt: skip
    def register(self, name, broker_id, address, term, **options):
        before = self.registry.members(name)
        if not before:
            self.leader_terms.pop(name, None)
        result = self.registry.register(broker_id, address, term=term, now=self.now, name=name, **options)
        after = self.registry.members(name)
        if result.refusal:
            assert after == before
            return
        assert after[broker_id] == address
        assert list(after.values()).count(address) == 1
        fence = self.leader_terms.get(name, 0)
        if term < fence:
            assert broker_id != 0
            assert before.get(0) == after.get(0)
        if broker_id == 0:
            self.leader_terms[name] = term

    @rule(
        name=NAMES, broker_id=st.integers(0, 3), address=ADDRESSES, term=st.none() | st.integers(1, 5),
        cluster=st.sampled_from("CD"),
    )  # fmt: skip
    def unregister(self, name, broker_id, address, term, cluster):
        before = self.registry.members(name)
        removed = self.registry.table.unregister(name, cluster, address, broker_id, term)
        assert removed == (before != self.registry.members(name))

    @rule(connection=st.integers(1, 4))
    def lose_connection(self, connection):
        self.registry.table.drop_connection(connection)

    @rule(passed=st.integers(1, 200))
    def pass_time(self, passed):
        self.now += passed
        self.registry.table.expire(self.now)

    @rule(name=NAMES)
    def forget_group(self, name):
        absent = self.registry.table.forget_group(name)
        assert not (absent and self.registry.members(name))

    @rule(topic=st.sampled_from(["T1", "T2", "T3"]))
    def delete_topic(self, topic):
        self.registry.table.delete_topic(topic)

    @rule()
    def tidy(self):
        self.registry.table.tidy()

    def teardown(self):
        topics.TIDIED_AT_ONCE = SLICE_TOPICS
        while self.registry.table.tidy():
            pass
        assert self.registry.table.topic_count == len(self.registry.table.topics())

    @invariant()
    def every_route_has_an_id_0_and_agrees_with_its_text(self):
        table = self.registry.table
        for topic, absent in itertools.product(table.topics(include_absent=True), (False, True)):
            if not absent and topic not in table.topics():
                continue
            route = table.route(topic, include_absent=absent)
            assert route is not None
            assert all(0 in data.broker_addrs or (absent and not data.broker_addrs) for data in route.broker_datas)
            text = table.encoded_route(topic, standard=True, include_absent=absent)
            assert text is not None
            assert decode_route(text) == route
            assert table.route_version(topic) <= table.version

    @invariant()
    def a_route_that_changed_has_a_newer_version(self):
        table = self.registry.table
        for topic, (version, route) in self.routes.items():
            if table.route_version(topic) == version:
                assert table.route(topic, include_absent=True) == route
        self.routes = {
            topic: (table.route_version(topic), table.route(topic, include_absent=True))
            for topic in ("T1", "T2", "T3", "TBW102")
        }

    @invariant()
    def a_table_made_from_what_is_known_knows_the_same(self):
        table = self.registry.table
        again = RouteTable(absent=table.known_groups())
        assert again.topics(include_absent=True) == table.topics(include_absent=True)
        assert again.known_groups() == table.known_groups()

    @invariant()
    def members_are_exactly_the_live_nodes(self):
        members = [len(self.registry.members(name)) for name in ("broker-0", "broker-1")]
        assert sum(members) == self.registry.table.node_count

    @invariant()
    def routes_are_counted(self):
        table = self.registry.table
        routes = [table.route(topic) for topic in table.topics()]
        assert table.route_count == sum(len(route.queue_datas) for route in routes if route is not None)

    @invariant()
    def every_group_is_in_one_cluster(self):
        info = self.registry.table.cluster_info()
        listed = sorted((name, cluster) for cluster, names in info.cluster_addr_table.items() for name in names)
        assert listed == sorted((name, data.cluster) for name, data in info.broker_addr_table.items())


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestAnyHistory = AnyHistory.TestCase
