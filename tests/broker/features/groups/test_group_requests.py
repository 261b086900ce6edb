"""Requests about the configuration of consumer groups."""

from __future__ import annotations

import msgspec
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


@pytest.mark.parametrize("code", [200, 225])
def test_attributes_are_changed_by_their_signs_and_those_that_are_not_named_stay(client: FakeClient, code: int) -> None:
    """`mqadmin updateSubGroup --attributes +k=v` writes the signs into the body."""

    def put(attributes: dict[str, str]) -> int:
        config: dict[str, object] = {"groupName": "CG", "attributes": attributes}
        body = config if code == 200 else {"groupConfigList": [config]}
        return client.call(code, {}, msgspec.json.encode(body)).code

    def shown() -> object:
        config = json_body(client.call(352, {"group": "CG"}))
        assert isinstance(config, dict)
        return config["attributes"]

    assert put({"+a": "1", "+b": "2"}) == 0
    assert shown() == {"a": "1", "b": "2"}
    assert put({"-a": "", "+c": "3"}) == 0
    assert put({}) == 0
    assert shown() == {"b": "2", "c": "3"}
    assert put({"+d": "x" * 4096}) == 29
    assert put({"+d": "", "-d": ""}) == 29
