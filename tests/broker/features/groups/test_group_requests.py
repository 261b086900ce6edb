"""Requests about the configuration of consumer groups."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, json_body

from dledger_broker.features.offsets.table import OFFSETS


def test_a_group_is_created_shown_and_deleted(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(200, {}, b'{"groupName":"CG","retryMaxTimes":3}').code == 0
    shown = json_body(client.call(352, {"group": "CG"}))
    assert isinstance(shown, dict)
    assert (shown["groupName"], shown["retryMaxTimes"], shown["consumeEnable"]) == ("CG", 3, True)
    listed = json_body(client.call(201))
    assert isinstance(listed, dict)
    assert list(listed["subscriptionGroupTable"]) == ["CG"]
    client.pull("T1", sysFlag="5", commitOffset="4")
    broker.advance(1)
    assert client.call(207, {"groupName": "CG", "cleanOffset": "true"}).code == 0
    assert client.call(352, {"group": "CG"}).code == 26
    assert broker.memory.machine.state.table(OFFSETS).get("CG", "T1", 0) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"groupName":"a b"}',
        b'{"groupName":"g","retryMaxTimes":-1}',
        b"\xff",
        b'{"groupName":"g","attributes":{"a":"%b"}}' % (b"x" * 4096),
    ],
)
def test_a_bad_group_is_refused_with_a_text(client: FakeClient, body: bytes) -> None:
    answer = client.call(200, {}, body)
    assert answer.code in {1, 29}
    assert answer.remark
