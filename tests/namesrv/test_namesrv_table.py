"""The route registry alone: registration, fencing by term, removal, routes, versions. Time is a number."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dledger_namesrv.records import NodeKey, Registered, TableLimits
from dledger_namesrv.table import RouteTable
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import DataVersion, RegisterBrokerBody, TopicConfigSerializeWrapper
from dledger_remoting.route import decode_route
from dledger_remoting.topics import TopicConfig

A, B, C = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"
TOPICS = ("T1", "TBW102")


class Registry:
    """A table with short words for what brokers do."""

    def __init__(self, **options):
        self.table = RouteTable(**options)
        self.counter = 0

    def register(
        self, broker_id, address, *, term=1, topics=TOPICS, now=0, connection=1, timeout=None, name="broker-0",
        cluster="C", **header,
    ) -> Registered:  # fmt: skip
        self.counter += 1
        configs = {topic: TopicConfig(topic, 4, 4) for topic in topics}
        wrapper = TopicConfigSerializeWrapper(configs, DataVersion(term, 0, self.counter))
        return self.table.register(
            RegisterBrokerHeader(name, address, cluster, f"{address}-ha", broker_id, timeout, **header),
            RegisterBrokerBody(wrapper),
            now_ms=now,
            connection=connection,
        )

    def members(self, name="broker-0"):
        return self.table.members(name)

    def addresses(self, topic="T1"):
        route = self.table.route(topic)
        assert route is not None
        return {data.broker_name: data.broker_addrs for data in route.broker_datas}


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_registered_leader_serves_its_topics(registry):
    assert registry.register(0, A) == Registered()
    assert registry.addresses() == {"broker-0": {0: A}}
    assert registry.table.topics() == ["T1", "TBW102"]
    assert registry.table.route("X") is None


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


def test_after_a_failover_a_node_appears_under_its_new_id_only(registry):
    registry.register(0, A, term=1)
    registry.register(2, B, term=1)
    registry.register(0, B, term=2)
    assert registry.members() == {0: B}
    registry.register(1, A, term=2)
    assert registry.members() == {0: B, 1: A}


def test_an_older_term_does_not_displace_the_leader(registry):
    registry.register(0, B, term=5)
    refused = registry.register(0, A, term=4)
    assert "term 4 is older than 5" in refused.refusal
    assert registry.members() == {0: B}
    assert registry.register(0, A, term=6) == Registered()
    assert registry.members() == {0: A}


def test_a_late_follower_registration_does_not_remove_its_own_leadership(registry):
    registry.register(2, B, term=4)
    registry.register(0, B, term=5)
    assert registry.register(2, B, term=4).refusal
    assert registry.members() == {0: B}


def test_an_older_leader_does_not_come_back_while_the_newer_one_is_away(registry):
    registry.register(0, B, term=5, connection=1)
    registry.register(2, C, term=5, connection=2)
    registry.table.drop_connection(1)
    assert registry.register(0, A, term=4).refusal
    assert registry.members() == {2: C}


def test_another_id_is_fenced_by_its_holders_term_too(registry):
    registry.register(0, A, term=5)
    registry.register(2, B, term=5)
    assert "belongs to" in registry.register(2, C, term=4).refusal
    assert registry.members() == {0: A, 2: B}


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


def test_a_silent_node_expires_after_its_own_timeout(registry):
    registry.register(0, A, now=0, timeout=15_000)
    registry.register(2, B, now=0)
    assert registry.table.expire(15_000) == []
    assert registry.table.expire(15_001) == [NodeKey("C", A)]
    assert registry.members() == {2: B}
    assert registry.table.expire(120_001) == [NodeKey("C", B)]
    assert registry.table.node_count == 0


def test_a_heartbeat_keeps_a_node(registry):
    registry.register(0, A, now=0, timeout=1000)
    assert registry.table.refresh("C", A, 900)
    assert registry.table.expire(1500) == []
    assert not registry.table.refresh("C", B, 900)


def test_a_half_started_broker_is_refused(registry):
    assert "single topic" in registry.register(0, A, topics=("T1",)).refusal
    registry.register(0, A)
    assert registry.register(0, A, topics=("T3",)) == Registered()
    assert registry.table.topics() == ["T1", "T3", "TBW102"]


def test_topics_stay_when_a_registration_lacks_them_unless_that_is_wished():
    keeping, deleting = Registry(), Registry(delete_missing_topics=True)
    for registry in (keeping, deleting):
        registry.register(0, A)
        registry.register(0, A, topics=("T1", "T2"))
    assert keeping.table.topics() == ["T1", "T2", "TBW102"]
    assert deleting.table.topics() == ["T1", "T2"]


def test_topics_that_a_complete_registration_lacks_are_gone_and_an_older_one_does_not_bring_them_back(registry):
    """A name server that nobody could tell of a deletion learns of it from the broker."""
    registry.register(0, A, topics=("T1", "T2", "T3"), topics_complete=True)
    registry.register(0, A, topics=("T2", "T3"), topics_complete=True)
    assert registry.table.topics() == ["T2", "T3"]
    registry.counter -= 2
    assert registry.register(0, A, topics=("T1", "T2", "T3"), topics_complete=True) == Registered()
    assert registry.table.topics() == ["T2", "T3"]
    registry.register(0, B, term=2, topics=("T1", "T3"), topics_complete=True)
    assert registry.table.topics() == ["T1", "T3"]


def test_an_address_that_moves_to_another_group_leaves_the_first(registry):
    registry.register(0, A)
    registry.register(0, A, name="broker-1")
    assert registry.members() == {}
    assert registry.members("broker-1") == {0: A}


def test_topics_vanish_with_their_last_group(registry):
    registry.register(0, A)
    registry.register(0, B, name="broker-1", topics=("T1", "T2"))
    registry.table.unregister("broker-0", "C", A, 0)
    assert registry.table.topics() == ["T1", "T2"]
    assert registry.addresses() == {"broker-1": {0: B}}


def test_a_route_never_lacks_id_0_while_a_node_lives(registry):
    registry.register(0, A, connection=1)
    registry.register(2, B, connection=2)
    registry.register(3, C, connection=3)
    registry.table.drop_connection(1)
    assert registry.addresses() == {"broker-0": {0: B, 2: B, 3: C}}
    assert registry.members() == {2: B, 3: C}
    assert registry.table.cluster_info().broker_addr_table["broker-0"].broker_addrs == {2: B, 3: C}


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


def test_a_group_whose_nodes_disagree_is_in_the_cluster_of_its_leader(registry):
    registry.register(0, A)
    version = registry.table.version
    for now in range(3):
        registry.register(2, B, cluster="D", now=now)
        registry.register(0, A, now=now)
    assert registry.table.cluster_info().cluster_addr_table == {"C": ["broker-0"]}
    assert registry.table.version == version + 1, "the routes change once, for the node that came"
    registry.table.unregister("broker-0", "C", A, 0)
    assert registry.table.cluster_info().cluster_addr_table == {"D": ["broker-0"]}


def test_a_node_of_another_cluster_that_lost_its_id_is_no_longer_there(registry):
    registry.register(0, A, term=1, cluster="D")
    registry.register(0, B, term=2)
    assert registry.members() == {0: B}
    assert registry.table.node_count == 1
    assert registry.register(2, C).master_address == B


def test_encoded_routes_are_stable_and_cached_until_the_route_changes(registry):
    registry.register(0, A)
    first = registry.table.encoded_route("T1", standard=True)
    registry.register(2, B, name="broker-1", topics=("T8", "T9"))
    registry.table.refresh("C", A, 5)
    assert registry.table.encoded_route("T1", standard=True) is first
    registry.register(2, B)
    second = registry.table.encoded_route("T1", standard=True)
    assert second is not None
    assert decode_route(second) == registry.table.route("T1")
    assert registry.table.encoded_route("T1", standard=False) != second
    assert registry.table.encoded_route("X", standard=True) is None


def test_a_topic_that_comes_back_has_a_fresh_route(registry):
    registry.register(0, A)
    assert b"10911" in (registry.table.encoded_route("T1", standard=True) or b"")
    registry.table.delete_topic("T1")
    assert registry.table.encoded_route("T1", standard=True) is None
    registry.register(0, B)
    assert b"10921" in (registry.table.encoded_route("T1", standard=True) or b"")


def test_versions_tell_which_routes_have_changed(registry):
    registry.register(0, A)
    registry.register(0, B, name="broker-1", topics=("T8", "T9"))
    seen = registry.table.version
    registry.register(0, A)
    assert not registry.table.changed_since(["T1", "T8", "X"], seen)
    registry.register(2, C)
    assert registry.table.changed_since(["T8", "T1"], seen)
    assert not registry.table.changed_since(["T8"], seen)
    seen = registry.table.version
    registry.register(0, A, topics=("T1", "T2"))
    assert registry.table.changed_since(["T2"], seen)
    assert not registry.table.changed_since(["T1"], seen)
    seen = registry.table.version
    registry.table.delete_topic("T1")
    assert registry.table.changed_since(["T1"], seen)
    assert registry.table.changed_since(["T8"], registry.table.version + 1), "a version of another server"


def test_an_absent_group_is_told_of_to_those_who_ask_until_its_leader_is_back(registry):
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
    assert (info.broker_addr_table["broker-1"].broker_addrs, info.cluster_addr_table["C"]) == (
        {},
        ["broker-0", "broker-1"],
    )
    assert (table.group_count, table.absent_group_count) == (1, 1)
    seen = table.version
    registry.register(2, C, name="broker-1", topics=("T1", "T2"))  # a follower, which brings no topics
    assert table.route("T2") is None
    assert table.changed_since(["T2"], seen)
    assert table.route("T2", include_absent=True).broker_datas[0].broker_addrs == {0: C, 2: C}
    registry.register(0, B, term=2, name="broker-1", topics=("T1", "T3"))
    assert table.route("T2", include_absent=True) is None
    assert registry.addresses() == {"broker-0": {0: A}, "broker-1": {0: B, 2: C}}
    assert table.absent_group_count == 0


def test_a_group_whose_followers_came_and_went_is_still_known(registry):
    registry.register(0, A)
    registry.table.unregister("broker-0", "C", A, 0)
    registry.register(1, B)
    registry.table.unregister("broker-0", "C", B, 1)
    assert registry.table.topics(include_absent=True) == ["T1", "TBW102"]


def test_what_is_known_of_groups_goes_to_another_table(registry):
    registry.register(0, A)
    registry.register(0, B, name="broker-1", cluster="D", topics=("T1", "T2"), connection=2)
    registry.table.drop_connection(2)
    known = registry.table.known_groups()
    table = RouteTable(absent=known)
    assert table.known_groups() == known
    assert table.topics() == []
    assert table.cluster_info(include_absent=True).cluster_addr_table == {"C": ["broker-0"], "D": ["broker-1"]}
    assert (
        table.route("T1", include_absent=True).queue_datas
        == registry.table.route("T1", include_absent=True).queue_datas
    )


def test_an_absent_group_can_be_forgotten_and_a_live_one_cannot(registry):
    table = registry.table
    registry.register(0, A)
    registry.register(0, B, name="broker-1", connection=2)
    assert not table.forget_group("broker-1")
    table.drop_connection(2)
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


def test_the_groups_that_are_remembered_have_a_limit():
    registry = Registry(limits=TableLimits(max_absent_groups=3))
    for number in range(5):
        registry.register(0, f"127.0.0.1:{number}", name=f"broker-{number}", connection=number)
        registry.table.drop_connection(number)
    assert list(registry.table.known_groups()) == ["broker-2", "broker-3", "broker-4"]
    assert registry.table.absent_groups_forgotten == 2


def test_the_topics_that_are_remembered_have_a_limit():
    registry = Registry(limits=TableLimits(max_routes=5))
    for number in range(4):
        registry.register(0, f"127.0.0.1:{number}", name=f"broker-{number}", connection=number)
        registry.table.drop_connection(number)
    assert list(registry.table.known_groups()) == ["broker-2", "broker-3"]
    assert registry.table.absent_groups_forgotten == 2


def test_nodes_beyond_the_limit_are_refused_and_those_that_are_there_stay():
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


def test_topics_beyond_the_limit_are_refused_and_those_that_are_there_stay():
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


def test_a_leader_with_a_topic_too_many_stands_in_for_itself_until_there_is_room():
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


def test_write_permission_can_be_taken_and_given_back(registry):
    registry.register(0, A)
    assert registry.table.set_write_permission("broker-0", writable=False) == 2
    assert {queues.perm for queues in registry.table.route("T1").queue_datas} == {4}
    assert registry.table.set_write_permission("broker-0", writable=True) == 2
    assert {queues.perm for queues in registry.table.route("T1").queue_datas} == {6}
    assert registry.table.set_write_permission("nobody", writable=False) == 0


def test_a_topic_can_be_deleted_in_one_cluster(registry):
    registry.register(0, A)
    assert not registry.table.delete_topic("T1", "OTHER")
    assert registry.table.topics_of_cluster("C") == ["T1", "TBW102"]
    assert registry.table.delete_topic("T1", "C")
    assert not registry.table.delete_topic("T1")
    assert registry.table.topics() == ["TBW102"]


NAMES = st.sampled_from(["broker-0", "broker-1"])
ADDRESSES = st.sampled_from([A, B, C])


class AnyHistory(RuleBasedStateMachine):
    """Whatever brokers and the clock do, the promises of the table hold."""

    def __init__(self):
        super().__init__()
        self.registry = Registry()
        self.now = 0
        self.leader_terms: dict[str, int] = {}
        self.routes: dict[str, tuple] = {}

    @rule(
        name=NAMES, broker_id=st.integers(0, 3), address=ADDRESSES, term=st.integers(1, 5),
        connection=st.integers(1, 4), timeout=st.sampled_from([None, 100]), cluster=st.sampled_from("CD"),
        topics=st.sampled_from([TOPICS, ("T1", "T2"), ("T3",)]),
    )  # fmt: skip
    def register(self, name, broker_id, address, term, connection, topics, timeout, cluster):
        before = self.registry.members(name)
        if not before:
            self.leader_terms.pop(name, None)
        result = self.registry.register(
            broker_id,
            address,
            term=term,
            topics=topics,
            now=self.now,
            connection=connection,
            timeout=timeout,
            name=name,
            cluster=cluster,
        )
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
