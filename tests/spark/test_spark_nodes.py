"""Who is asked: name servers in turn, for a limited time."""

from __future__ import annotations

import pytest

from dledger_spark import nodes
from dledger_spark.errors import SourceError, WireError
from dledger_spark.nodes import NAME_SERVER_TIMEOUT_S, NameServers
from dledger_spark.wire import Response


class Network:
    """Name servers by address, each with the time from which it answers; time passes by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **up_from: float) -> None:
        self.now = 0.0
        self.dialled: list[str] = []
        self._up_from = up_from
        monkeypatch.setattr(nodes.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(nodes.time, "sleep", self._sleep)
        monkeypatch.setattr(nodes, "Connection", self._connect)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _connect(self, address: str, timeout_s: float) -> Network:
        self.dialled.append(address)
        if self.now < self._up_from[address]:
            raise WireError(f"{address}: refused")
        return self

    def request(self, code: int, ext: object) -> Response:
        return Response(0, {}, "", b'{"topicList":["T"]}')

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
