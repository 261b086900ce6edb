"""Shapes of the answers to administrators, to compare our brokers' answers with those of a real RocketMQ.

Each line holds a code with the question, the place of a value in the body, and its kind: `202
.offsetTable{queue}.maxOffset number`. Names of topics, groups and clients are left out, and so is the number of items.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from raw_wire import member_body

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from tests.integration.bare_client import BareClient

TOPIC: Final = "AdminAnswers"
GROUP: Final = "AdminAnswers-readers"
PRODUCERS: Final = "AdminAnswers-producers"
TABLES_BY_NAME: Final = frozenset(
    {".consumeStatsList[]", ".topicConfigTable", ".subscriptionGroupTable", ".subscriptionTable", ".data"}
)
"""Tables whose keys are names. Names other than those of these tests are ignored."""
_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?[\d.eE+-]+|true|false|null|[{}\[\]:,])')


_NAMES: Final = frozenset({TOPIC, GROUP, PRODUCERS})


class Question(NamedTuple):
    """Request of a tool to a broker. `what` distinguishes requests with the same code."""

    code: RequestCode
    ext: Mapping[str, str] = {}
    what: str = ""


_ABOUT: Final = {"topic": TOPIC, "group": GROUP, "consumerGroup": GROUP, "producerGroup": PRODUCERS}
_NOBODY: Final = dict.fromkeys(("topic", "group", "consumerGroup", "producerGroup"), "AdminAnswers-nobody")
_BOTH: Final = (
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.GET_CONSUME_STATS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_TOPICS_OF_GROUP,
    RequestCode.GET_SUBSCRIPTION_OF_GROUP,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
)
QUESTIONS: Final = (
    Question(RequestCode.GET_ALL_TOPIC_CONFIG),
    Question(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG),
    Question(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    Question(RequestCode.GET_ALL_PRODUCER_INFO),
    Question(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    *(Question(code, _ABOUT) for code in _BOTH),
    *(Question(code, _NOBODY, "nobody") for code in _BOTH),
    Question(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}, "all topics"),
    Question(RequestCode.QUERY_CONSUME_QUEUE, {"topic": TOPIC, "queueId": "0", "index": "0", "count": "1"}),
    Question(
        RequestCode.QUERY_CONSUME_QUEUE,
        {"topic": TOPIC, "queueId": "0", "index": "0", "count": "1", "consumerGroup": GROUP},
        "of a group",
    ),
    Question(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
    Question(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "no-such"}, "nobody"),
    Question(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true"},
    ),
)


def prepare(client: BareClient) -> None:
    """Create a topic with a message, and become a producer and a member of a group that has consumed it."""
    numbers = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicSysFlag": "0"}
    topic = {"topic": TOPIC, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    _require(client, RequestCode.UPDATE_AND_CREATE_TOPIC, topic | numbers)
    _require(client, RequestCode.HEART_BEAT, {}, member_body(GROUP, PRODUCERS, TOPIC))
    letters = {"a": PRODUCERS, "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0", "i": ""}
    born_ms = time.time_ns() // 1_000_000
    _require(client, RequestCode.SEND_MESSAGE_V2, {**letters, "g": str(born_ms)}, b"message")
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "1"}
    _require(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)


def _require(client: BareClient, code: RequestCode, ext: Mapping[str, str], body: bytes = b"") -> None:
    answer = _answer(client, code, ext, body)
    assert answer.code == 0, f"{code.name} was answered {answer.code} {answer.remark}"


def _answer(client: BareClient, code: RequestCode, ext: Mapping[str, str], body: bytes = b"") -> RemotingCommand:
    """Send a request and return the answer. Requests from the broker to its member meanwhile are ignored."""
    opaque = client.post(code, ext, body)
    while (answer := client.read()).opaque != opaque or not answer.is_response:
        pass
    return answer


def asked(client: BareClient) -> list[str]:
    """Ask all questions, and return the shapes of their answers."""
    lines: list[str] = []
    for question in QUESTIONS:
        answer = _answer(client, question.code, question.ext)
        name = f"{question.code:d} {question.what}".strip()
        lines.append(f"{name} answered {answer.code}")
        if answer.body:
            lines += sorted({f"{name} {place}" for place in places(read(answer.body.decode()))})
    return lines


def places(value: object, at: str = "") -> Iterator[str]:
    """Yield the place and the kind of each value in a body."""
    if isinstance(value, dict):
        if not value:
            yield f"{at} empty"
        for key, inner in value.items():
            if at in TABLES_BY_NAME and key not in _NAMES:
                continue
            if isinstance(key, frozenset):
                step = "{queue}"
            elif at in TABLES_BY_NAME:
                step = "{name}"
            else:
                step = f".{key}"
            yield from places(inner, at + step)
    elif isinstance(value, list):
        if not value:
            yield f"{at}[] empty"
        for inner in value:
            yield from places(inner, f"{at}[]")
    else:
        yield f"{at} {_KINDS[type(value)]}"


_KINDS: Final = {str: "text", int: "number", float: "number", bool: "flag", type(None): "null"}


def read(text: str) -> object:
    """Parse JSON as fastjson does: keys may be numbers or objects.

    An object as a key becomes the set of its items.
    """
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
