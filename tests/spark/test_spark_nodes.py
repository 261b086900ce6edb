"""The nodes that are asked: name servers in turn, for a limited time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from dledger_spark import nodes, plans
from dledger_spark.errors import NoNameServerError, RefusedError, SourceError, WireError
from dledger_spark.nodes import NAME_SERVER_TIMEOUT_S, NameServers
from dledger_spark.options import read_options
from dledger_spark.plans import Cluster
from dledger_spark.wire import Response


class Network:
    """Name servers by address, each with the time from which it answers. Time passes by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **up_from: float) -> None:
        self.now = 0.0
        self.dialled: list[str] = []
        self.up_from = up_from
        self.address = ""
        self.topics = ["T"]
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr(nodes.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(nodes.time, "sleep", self._sleep)
        monkeypatch.setattr(nodes, "Connection", self._connect)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _connect(self, address: str, _: float, **__: bool) -> Network:
        return self.dial(address)

    def dial(self, address: str) -> Network:
        self.dialled.append(address)
        if self.now < self.up_from[address]:
            raise WireError(f"{address}: refused")
        return self

    def requests(self, code: int, all_ext: Sequence[Mapping[str, str]], body: bytes = b"") -> list[Response]:
        self.asked.append((code, len(all_ext)))
        if code == nodes.GET_TOPICS:
            return [Response(0, {}, "", json.dumps({"topicList": self.topics}).encode())]
        if code == nodes.GET_CLUSTER:
            return [Response(0, {}, "", b'{"brokerAddrTable":{},"clusterAddrTable":{}}')]
        if code == nodes.GET_ROUTE:
            entry = {"brokerName": "broker-a", "readQueueNums": 1, "perm": 6}
            return [Response(0, {}, "", json.dumps({"queueDatas": [entry]}).encode()) for _ in all_ext]
        if code == plans.PIN_LOG:
            return [Response(20112, {}, "position 5 is below 7", b"")]
        return [Response(0, {"commit": "7"}, "", b"") for _ in all_ext]

    def groups(self) -> dict[str, dict[int, str]]:
        try:
            self.dial("names")
        except WireError as error:
            self._sleep(NAME_SERVER_TIMEOUT_S)
            raise NoNameServerError(f"no name server answered: {error}") from error
        return {"broker-a": {1: "node"}}

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def network(monkeypatch):
    """Return a maker of networks. Their name servers tell clusters of one node."""

    def made(**up_from: float) -> Network:
        found = Network(monkeypatch, **up_from)
        if "node" in up_from:
            monkeypatch.setattr(plans, "Connection", lambda address, _: found.dial(address))
            monkeypatch.setattr(NameServers, "groups", lambda _: found.groups())
        return found

    return made


def cluster_of(**options: str) -> Cluster:
    return Cluster(read_options({"namesrv": "a:1", "subscribe": "t"} | options, "batch"))


def test_the_next_name_server_is_asked_at_once_and_a_single_one_that_starts_anew_is_waited_for(network):
    two = network(one=1e9, two=0)
    assert NameServers(("one", "two")).topics() == ["T"]
    assert (two.dialled, two.now) == (["one", "two"], 0)
    one = network(one=1.0)
    assert NameServers(("one",)).topics() == ["T"]
    assert 1.0 <= one.now < 1.2


def test_without_name_servers_the_error_names_each_address_and_reason(network):
    silent = network(one=1e9, two=1e9)
    with pytest.raises(SourceError, match=r"^no name server answered: one: refused; two: refused$"):
        NameServers(("one", "two")).topics()
    assert NAME_SERVER_TIMEOUT_S <= silent.now < NAME_SERVER_TIMEOUT_S + 0.2


def test_a_connected_node_is_asked_without_a_name_server(network):
    up = network(names=0, node=0)
    cluster = cluster_of()
    assert cluster.commit("broker-a") == 7
    up.up_from["names"] = 1e9
    assert cluster.commit("broker-a") == 7
    assert up.dialled.count("names") == 1
    cluster.close()


def test_name_servers_may_be_away_for_as_long_as_a_question_may_take(network):
    late = network(names=20.0, node=0)
    assert cluster_of(readTimeout="60s").commit("broker-a") == 7
    late.up_from["names"] = 1e9
    with pytest.raises(SourceError, match=r"no node of broker-a answered within 60 s \(no name server answered"):
        cluster_of(readTimeout="60s").commit("broker-a")


def test_a_pin_below_the_start_of_the_log_is_refused_at_once(network):
    up = network(names=0, node=0)
    with pytest.raises(RefusedError, match="position 5 is below 7"):
        cluster_of().pin("broker-a", "name", 5, 1000)
    assert up.now == 0


def test_routes_of_thousands_of_topics_are_fetched_together_and_then_only_new_ones(network):
    up = network(one=0)
    up.topics = [f"t{number}" for number in range(5000)]
    cluster = Cluster(read_options({"namesrv": "one:1", "subscribePattern": "t.*"}, "batch"))
    up.up_from["one:1"] = 0
    assert len(cluster.queues()) == 5000
    up.topics += ["t-new", "other"]
    assert len(cluster.queues()) == 5001
    up.now += plans.ROUTES_SECONDS
    assert len(cluster.queues()) == 5001
    assert [count for code, count in up.asked if code == nodes.GET_ROUTE] == [5000, 1, 5001]


def test_an_unchanged_log_is_not_planned_again(network, monkeypatch):
    planned = []
    numbers = {"version": 1, "ordinal": 0, "firstPosition": 0, "commit": 7}
    plan = json.dumps({"group": "broker-a", "cuts": [], "topics": [], **numbers}).encode()

    class Reader:
        def request(self, _, ext):
            planned.append(ext["minCommit"])
            return Response(0, {}, "", plan)

    network(names=0, node=0)
    cluster = cluster_of()
    monkeypatch.setattr(cluster, "reader", lambda _: Reader())
    for topics in (["t"], ["t"], ["t", "u"], ["t", "u"]):
        cluster.plan("broker-a", topics)
    cluster.plan("broker-a", ["t"], slice_bytes=1)
    assert len(planned) == 3
