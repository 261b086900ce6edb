"""Calls of each operation to the cluster, and its answers, all of which the OpenAPI document allows."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime

import pytest
from http_fronts import DOCUMENT, Started, check_value, operation_at, serving
from openapi_spec_validator import validate
from waiting import until

from dledger_client import ConnectionLostError, MessageQueue, NoBrokerError, SendError, SendResult, Sql
from dledger_proxy.http.handles import cursor_at, open_receipt

SEND, RECEIVE, TAIL = "/v1/topics/T/messages", "/v1/topics/T/receive", "/v1/topics/T/tail"


@pytest.fixture
async def started():
    async with serving() as serving_front:
        yield serving_front


async def events(started: Started, query: str, count: int, **options: object) -> list[dict[str, str]]:
    """Return the first events of a tail, each with its fields."""
    found: list[dict[str, str]] = []
    async with started.caller.session.get(started.caller.url + TAIL + query, **options) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        fields: dict[str, str] = {}
        async with asyncio.timeout(10):
            while len(found) < count:
                line = (await response.content.readline()).decode().rstrip("\n")
                name, _, value = line.partition(": ")
                if name:
                    fields[name] = value
                elif fields:
                    found.append(fields)
                    fields = {}
    return found


async def test_one_message_of_each_form_of_body(started):
    for body, stored in [
        ({"text": "héllo"}, "héllo".encode()),
        ({"base64": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
        ({"json": {"a": [1, None]}}, b'{"a": [1, null]}'),
        ({"json": None}, b"null"),
        ({"text": ""}, b""),
    ]:
        answer = await started.caller.post(SEND, body)
        assert answer.status == 200
        assert started.backend.sent[-1][2].body == stored
        assert answer.json["messages"][0]["queue"] == "broker-a/0"


async def test_a_message_has_tag_keys_properties_order_and_time(started):
    body = {
        "text": "x",
        "tag": "a",
        "keys": ["k1", "k2"],
        "properties": {"p": "q"},
        "ordering_key": "o",
        "deliver_at": "2030-01-02T03:04:05+01:00",
    }
    assert (await started.caller.post(SEND, body)).status == 200
    message = started.backend.sent[0][2]
    assert (message.tags, message.key, message.properties, message.ordering_key) == ("a", ["k1", "k2"], {"p": "q"}, "o")
    assert message.deliver_at == datetime(2030, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert (await started.caller.post(SEND, {"text": "x", "delay_seconds": 1.5})).status == 200
    assert started.backend.sent[1][2].delay_s == 1.5


async def test_an_array_is_stored_in_its_order_with_one_result_each(started):
    answer = await started.caller.post(SEND, [{"text": "a"}, {"text": "b"}])
    assert [message.body for _, _, message, _ in started.backend.sent] == [b"a", b"b"]
    assert [(row["place"], row["offset"]) for row in answer.json["messages"]] == [(0, 0), (1, 1)]
    assert started.metric("dledger_proxy_http_messages_total", direction="in") == 2


@pytest.mark.parametrize("sent_key", ["order-17", '"order-17"'])
async def test_a_request_with_an_idempotency_key_names_its_messages_by_it(started, sent_key):
    headers = {"Idempotency-Key": sent_key}
    await started.caller.post(SEND, {"text": "a"}, headers=headers)
    await started.caller.post(SEND, [{"text": "a"}, {"text": "b"}], headers=headers)
    keys = [(message.unique_key, idempotent) for _, _, message, idempotent in started.backend.sent]
    assert keys == [("order-17", True), ("order-17.0", True), ("order-17.1", True)]
    await started.caller.post(SEND, {"text": "a"})
    assert started.backend.sent[-1][3] is None, "without a key the topic decides"


async def test_a_trace_context_becomes_a_property_unless_it_is_none(started):
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    for header, body, property_value in [
        (parent, {"text": "x"}, parent),
        (parent, {"text": "x", "properties": {"traceparent": "own"}}, "own"),
        ("00-zz-1", {"text": "x"}, None),
        ("00-" + "0" * 32 + "-00f067aa0ba902b7-01", {"text": "x"}, None),
    ]:
        await started.caller.post(SEND, body, headers={"traceparent": header})
        assert (started.backend.sent[-1][2].properties or {}).get("traceparent") == property_value


async def test_a_failed_array_says_which_messages_are_stored_and_what_is_known_of_the_rest(started):
    async def send(account, topic, messages, **_):
        stored = SendResult(messages[1].unique_key, "", topic, "broker-a", 2, 9)
        cause = ConnectionLostError("a:1", "reset")
        raise SendError(topic, 1, "unknown", cause, (stored,)) from cause

    started.backend.send = send
    answer = await started.caller.post(SEND, [{"text": "a"}, {"text": "b"}])
    assert (answer.status, answer.json["outcome"]) == (504, "unknown")
    assert [(row["place"], row["queue"], row["offset"]) for row in answer.json["stored"]] == [(1, "broker-a/2", 9)]


async def test_taken_messages_come_with_receipts_and_without_what_is_the_brokers_own(started):
    started.backend.store(b"hello", tags="a", keys=("k",), reconsume_times=2)
    request = {
        "group": "G",
        "max": 5,
        "wait_seconds": 1.5,
        "invisible_seconds": 60,
        "filter": "a || b",
        "start": "last",
    }
    (message,) = (await started.caller.post(RECEIVE, request)).json["messages"]
    assert (message["text"], message["tag"], message["keys"], message["delivery_attempt"]) == ("hello", "a", ["k"], 3)
    assert message["properties"] == {"colour": "red"}
    assert datetime.fromisoformat(message["visible_again_at"]).timestamp() == 1_796_000_030
    assert open_receipt(message["receipt"], "G", "T").message_id == message["message_id"]
    assert started.backend.subscriptions == [("G", "T", "a || b", 60.0, False)]
    assert started.metric("dledger_proxy_http_messages_total", direction="out") == 1


@pytest.mark.parametrize(
    ("body", "body_as", "shown"),
    [
        (b"hello", "text", {"text": "hello"}),
        (b"\xff", "text", {"base64": "/w=="}),
        (b"hello", "base64", {"base64": "aGVsbG8="}),
        (b'{"a":\n1.50}', "json", {"json": {"a": 1.5}}),
        (b"no json", "json", {"text": "no json"}),
        (b"\xff", "json", {"base64": "/w=="}),
        (b"[" * 100_000, "json", {"text": "[" * 100_000}),
    ],
)
async def test_a_body_comes_in_the_wanted_form_or_in_one_that_it_has(started, body, body_as, shown):
    started.backend.store(body)
    (message,) = (await started.caller.post(RECEIVE, {"group": "G", "body_as": body_as})).json["messages"]
    assert {name: message[name] for name in ("text", "base64", "json") if name in message} == shown


async def test_a_message_is_recalled_by_its_handle(started):
    answer = await started.caller.post("/v1/topics/T/recall", {"recall_handle": "abc"})
    assert (answer.status, answer.json) == (200, {"message_id": "id of abc"})


async def test_sql_is_a_filter_and_excludes_tags(started):
    assert (await started.caller.post(RECEIVE, {"group": "G", "sql": "a > 1"})).status == 200
    assert started.backend.subscriptions[0].filter == Sql("a > 1")
    answer = await started.caller.post(RECEIVE, {"group": "G", "sql": "a > 1", "filter": "x"})
    assert (answer.status, answer.json["detail"]) == (
        400,
        "filter and sql: give one of them; in SQL the tag is the property TAGS",
    )


async def receipts(started: Started, count: int) -> list[str]:
    for _ in range(count):
        started.backend.store()
    answer = await started.caller.post(RECEIVE, {"group": "G", "max": count})
    return [message["receipt"] for message in answer.json["messages"]]


async def test_each_receipt_has_its_own_result(started):
    taken = await receipts(started, 3)
    started.backend.gone = {"id-1"}
    answer = await started.caller.post("/v1/topics/T/ack", {"group": "G", "receipts": taken})
    assert [row["state"] for row in answer.json["results"]] == ["done", "gone", "done"]
    assert [row["receipt"] for row in answer.json["results"]] == taken
    answer = await started.caller.post("/v1/topics/T/nack", {"group": "G", "receipts": taken[:1], "delay_seconds": 5})
    assert (answer.json["results"][0]["state"], started.backend.settled[-1][1]) == ("done", 5.0)
    answer = await started.caller.post(
        "/v1/topics/T/extend", {"group": "G", "receipts": taken, "invisible_seconds": 90}
    )
    assert ["next_receipt" in row for row in answer.json["results"]] == [True, False, True]
    assert started.backend.settled[-1][1] == 90.0


async def test_a_failure_for_one_receipt_does_not_hide_the_results_of_the_others(started):
    taken = await receipts(started, 2)
    failing = open_receipt(taken[1], "G", "T")

    async def ack(_, receipt):
        if receipt == failing:
            raise NoBrokerError("no node of broker-b is registered")
        return True

    started.backend.ack = ack
    answer = await started.caller.post("/v1/topics/T/ack", {"group": "G", "receipts": taken})
    assert (answer.status, [row["state"] for row in answer.json["results"]]) == (503, ["done", "failed"])
    assert answer.json["results"][1]["detail"] == "no node of broker-b is registered"


async def test_receipts_of_another_group_or_twice_are_refused_before_anything_is_settled(started):
    (receipt,) = await receipts(started, 1)
    for body, detail in [
        ({"group": "H", "receipts": [receipt]}, "the receipt is of group 'G' and topic 'T'"),
        ({"group": "G", "receipts": [receipt, receipt]}, "receipts: one is there twice"),
        (
            {"group": "G", "receipts": [receipt, "junk"]},
            "'junk' is no receipt: pass on the whole text that the front gave",
        ),
    ]:
        answer = await started.caller.post("/v1/topics/T/ack", body)
        assert (answer.status, answer.json["detail"]) == (400, detail)
    assert started.backend.settled == []


async def test_topics_queues_and_progress_are_shown(started):
    assert (await started.caller.get("/v1/topics")).json == {"topics": ["T"]}
    assert (await started.caller.get("/v1/topics/T")).json["queues"] == [{"queue": "broker-a/0", "first": 3, "end": 10}]
    progress = (await started.caller.get("/v1/topics/T/offsets?group=G")).json
    assert (progress["lag"], progress["queues"][0]["committed"]) == (3, 7)
    assert (await started.caller.get("/v1/topics/T/offsets?group=H")).json["queues"][0]["committed"] is None


async def test_a_tail_shows_messages_and_goes_on_behind_the_id_of_the_last_event(started):
    started.backend.store(b'{"a":\n1}')
    started.backend.store(b"two\nlines", fault="cut off")
    begun, first, second = await events(started, "?start=first&body_as=json", 3)
    assert (begun["retry"], begun["id"]) == ("1000", cursor_at("T", {MessageQueue("T", "broker-a", 0): 0}).text)
    schema = operation_at("GET", TAIL)["responses"]["200"]["content"]["text/event-stream"]["schema"]
    shown = [json.loads(event["data"]) for event in (first, second)]
    for message in shown:
        check_value(schema, message)
    assert (shown[0]["json"], shown[1]["base64"], shown[1]["fault"]) == ({"a": 1}, "dHdvCmxpbmVz", "cut off")
    assert ("id" in first, second["event"]) == (False, "message"), "only the end of a batch is a place to go on"
    await events(started, "", 1, headers={"Last-Event-ID": second["id"]})
    assert started.backend.tails[-1].start == cursor_at("T", {MessageQueue("T", "broker-a", 0): 2})
    await events(started, f"?after={second['id']}&filter=x&group=readers", 1)
    assert started.backend.tails[-1][1:3] == ("readers", "x")
    await events(started, "?since=2026-01-01T00:00:00Z", 1)
    assert started.backend.tails[-1].start == datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_tail_ends_with_the_problem_that_stopped_it(started):
    started.backend.store()

    async def fail():
        await until(lambda: started.metric("dledger_proxy_http_messages_total", direction="tail") == 1)
        started.backend.failure = NoBrokerError("nobody is there")

    failing = asyncio.create_task(fail())
    async with started.caller.session.get(started.caller.url + TAIL) as response:
        last = (await response.content.read()).decode().strip().split("\n\n")[-1].split("\n")
    await failing
    assert last[0] == "event: problem"
    problem = json.loads(last[1].removeprefix("data: "))
    check_value({"$ref": "#/components/schemas/Problem"}, problem)
    assert (problem["status"], problem["detail"]) == (503, "nobody is there")


async def test_a_tail_that_cannot_begin_is_answered_as_any_request(started):
    started.backend.failure = NoBrokerError("nobody is there")
    answer = await started.caller.get(TAIL)
    assert answer.status == 503


async def test_the_document_is_valid_and_is_what_the_front_shows(started):
    validate(DOCUMENT)
    shown = (await started.caller.get("/v1/openapi.json")).json
    assert shown == DOCUMENT
    described = {(method.upper(), path) for path, methods in shown["paths"].items() for method in methods}
    served = {(route.method, route.resource.canonical) for route in started.front._runner.app.router.routes()}
    assert described == served
