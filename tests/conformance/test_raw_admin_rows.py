"""Bodies that operators' tools read: as Java's fastjson does where queues are keys, as strict JSON everywhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from raw_wire import Wire, killed_in_the_middle

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command
from dledger_remoting.fastjson import encode_fastjson
from dledger_remoting.topics import MessageQueue
from tests.integration.bare_client import BareClient

STRICT: Final[tuple[RequestCode, ...]] = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_TOPICS_OF_GROUP,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
QUEUES_AS_KEYS: Final[dict[RequestCode, Callable[[object], object]]] = {
    RequestCode.GET_TOPIC_STATS_INFO: lambda body: body["offsetTable"],
    RequestCode.GET_CONSUME_STATS: lambda body: body["offsetTable"],
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda body: body["offsetTable"],
}
OLD_VERSION, NEW_VERSION = 275, 479
"""Of RocketMQ 4.3.2 and 5.3.3, as clients say them."""
KEYED: Final = frozenset({("brokerName", "broker-a"), ("queueId", 0)})
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?[\d.eE+-]+|true|false|null|[{}\[\]:,])')


@pytest.fixture(params=[False, True], ids=["undisturbed", "leader killed"])
def row(quick_group, request) -> Iterator[Wire]:
    yield from killed_in_the_middle(quick_group, kills=request.param)


def read(text: str) -> object:
    """What fastjson reads: JSON in which keys may be numbers, and objects, which become sets of their items."""
    tokens = [match.group(1) for match in _TOKEN.finditer(text)]
    assert "".join(tokens) == re.sub(r'\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', "", text), "nothing stands between"
    value, rest = _value(tokens)
    assert not rest
    return value


def _value(tokens: list[str]) -> tuple[object, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first not in "{[":
        return json.loads(first), rest
    found: list[tuple[object, object]] = []
    closing = "}" if first == "{" else "]"
    while rest[0] != closing:
        key, rest = _value(rest) if first == "{" else (None, rest)
        if first == "{":
            assert rest[0] == ":"
            rest = rest[1:]
        value, rest = _value(rest)
        found.append((frozenset(key.items()) if isinstance(key, dict) else key, value))
        rest = rest[1:] if rest[0] == "," else rest
    return (dict(found) if first == "{" else [value for _, value in found]), rest[1:]


def fields(row: Wire) -> dict[str, str]:
    """What any of these requests asks about."""
    named = {"topic": row.topic, "group": row.group, "consumerGroup": row.group, "producerGroup": "raw-producers"}
    return {**named, "timestamp": "-1", "isForce": "true"}


def test_bodies_without_queues_as_keys_are_strict_json(row):
    row.heartbeat()
    row.send("message")
    for killed in (False, True):
        if killed:
            row.kill()
            row.heartbeat()
        for code in STRICT:
            answer = row.ask(code, fields(row))
            assert isinstance(json.loads(answer.body), dict), code.name


def test_bodies_with_queues_as_keys_are_what_java_reads(row):
    row.heartbeat()
    row.send("message")
    commit = {"consumerGroup": row.group, "topic": row.topic, "queueId": "0", "commitOffset": "1"}
    row.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    for killed in (False, True):
        if killed:
            row.kill()
            row.heartbeat()
        for code, table in QUEUES_AS_KEYS.items():
            body = row.ask(code, fields(row)).body.decode()
            with pytest.raises(json.JSONDecodeError):
                json.loads(body)
            assert KEYED | {("topic", row.topic)} in table(read(body)), code.name


@pytest.mark.parametrize(("version", "kind"), [(OLD_VERSION, int), (NEW_VERSION, str)], ids=["4.3", "5.3"])
def test_broker_ids_are_numbers_to_old_clients_and_texts_to_new_ones(quick_group, version, kind):
    with BareClient(quick_group.namesrv) as names:
        asked = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1, version=version)
        names.write(encode_command(asked))
        table = read(names.read().body.decode())
    keys = table["brokerAddrTable"]["broker-a"]["brokerAddrs"].keys()
    assert {type(key) for key in keys} == {kind}


def test_the_reader_knows_what_is_no_json():
    queue = MessageQueue("broker-a", 0, "T")
    assert read(encode_fastjson({"table": {queue: {1: "a b"}}}).decode()) == {
        "table": {KEYED | {("topic", "T")}: {1: "a b"}}
    }
    with pytest.raises((AssertionError, IndexError)):
        read('{"table":{"a":?}}')
