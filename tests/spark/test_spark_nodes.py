"""Nodes that are asked: name servers in turn, for a limited time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dledger_spark import nodes, plans
from dledger_spark.errors import NoNameServerError, RefusedError, SourceError, WireError
from dledger_spark.nodes import NAME_SERVER_TIMEOUT_S, NameServers
from dledger_spark.options import read_options
from dledger_spark.plans import Cluster
from dledger_spark.wire import Response


class Network:
    """Name servers by address, each with the time from which it answers; time passes by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **up_from: float) -> None:
        self.now = 0.0
        self.dialled: list[str] = []
        self.up_from = up_from
        self.address = ""
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

    def request(self, code: int, ext: object) -> Response:
        return Response(0, {}, "", b'{"topicList":["T"]}')

    def requests(self, code: int, all_ext: Sequence[object], body: bytes) -> list[Response]:
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
        """Nothing is open."""


def test_the_next_name_server_is_asked_at_once(monkeypatch):
    network = Network(monkeypatch, one=1e9, two=0)
    assert NameServers(("one", "two")).topics() == ["T"]
    assert (network.dialled, network.now) == (["one", "two"], 0)


def test_a_name_server_that_starts_anew_is_waited_for(monkeypatch):
    network = Network(monkeypatch, one=1.0)
    assert NameServers(("one",)).topics() == ["T"]
    assert 1.0 <= network.now < 1.2


def test_without_any_name_server_it_ends_with_one_reason_for_each(monkeypatch):
    network = Network(monkeypatch, one=1e9, two=1e9)
    with pytest.raises(SourceError, match=r"^no name server answered: one: refused; two: refused$"):
        NameServers(("one", "two")).topics()
    assert NAME_SERVER_TIMEOUT_S <= network.now < NAME_SERVER_TIMEOUT_S + 0.2


def test_who_is_connected_is_asked_without_any_name_server(monkeypatch):
    network = Network(monkeypatch, names=0, node=0)
    monkeypatch.setattr(plans, "Connection", lambda address, _: network.dial(address))
    monkeypatch.setattr(NameServers, "groups", lambda _: network.groups())
    cluster = Cluster(read_options({"namesrv": "a:1", "subscribe": "t"}, "batch"))
    assert cluster.commit("broker-a") == 7
    network.up_from["names"] = 1e9
    assert cluster.commit("broker-a") == 7
    assert network.dialled.count("names") == 1
    cluster.close()


def test_name_servers_may_be_away_for_as_long_as_a_question_may_take(monkeypatch):
    network = Network(monkeypatch, names=20.0, node=0)
    monkeypatch.setattr(plans, "Connection", lambda address, _: network.dial(address))
    monkeypatch.setattr(NameServers, "groups", lambda _: network.groups())
    options = {"namesrv": "a:1", "subscribe": "t", "readTimeout": "60s"}
    assert Cluster(read_options(options, "batch")).commit("broker-a") == 7
    network.up_from["names"] = 1e9
    with pytest.raises(SourceError, match=r"no node of broker-a answered within 60 s \(no name server answered"):
        Cluster(read_options(options, "batch")).commit("broker-a")


def test_a_pin_of_what_is_gone_is_refused_at_once(monkeypatch):
    network = Network(monkeypatch, names=0, node=0)
    monkeypatch.setattr(plans, "Connection", lambda address, _: network.dial(address))
    monkeypatch.setattr(NameServers, "groups", lambda _: network.groups())
    cluster = Cluster(read_options({"namesrv": "a:1", "subscribe": "t"}, "batch"))
    with pytest.raises(RefusedError, match="position 5 is below 7"):
        cluster.pin("broker-a", "name", 5, 1000)
    assert network.now == 0
