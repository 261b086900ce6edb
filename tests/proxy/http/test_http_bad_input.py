"""Requests of any form are answered by a problem that the document allows, and store nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_fronts import DOCUMENT, Started, raw_connection, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
POSTS = [path for path, methods in DOCUMENT["paths"].items() if "post" in methods]
GETS = [path for path, methods in DOCUMENT["paths"].items() if "parameters" in methods.get("get", {})]
FIELDS = sorted({name for schema in DOCUMENT["components"]["schemas"].values() for name in schema["properties"]})
QUERY_NAMES = ["timeout_seconds", "start", "since", "after", "group", "filter", "sql", "body_as"]
BODIES = (
    st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=6)
    | st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=3), max_size=3)
    | JSON_VALUES
)
TOPICS = st.text(min_size=1, max_size=20) | st.sampled_from(["T", "x" * 200, "%RETRY%G", "a b", "a/b", "..", "Ü"])


async def ask_all(started: Started, asks: list[tuple[str, Any, dict[str, str]]]) -> None:
    """Send requests one after the other. Answers are checked as they come; a tail that begins is left."""
    for path, body, query in asks:
        if body is not None:
            answer = await started.caller.post(path, body, params=query)
            if answer.status >= 400:
                assert answer.status < 500, answer.json
                assert answer.json["outcome"] == "not_stored"
                assert len(answer.json["detail"]) < 2_000
        else:
            async with started.caller.session.get(started.caller.url + path, params=query) as response:
                assert response.status < 500
    assert started.backend.waiting == 0


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(POSTS), BODIES, st.just({})), min_size=5, max_size=15))
def test_bodies_of_any_json(asks):
    async def run():
        async with serving() as started:
            await ask_all(started, [(path.replace("{topic}", "T"), body, query) for path, body, query in asks])

    asyncio.run(run())


@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(POSTS + GETS),
            TOPICS,
            st.dictionaries(st.sampled_from(QUERY_NAMES), st.text(max_size=30), max_size=4),
        ),
        min_size=3,
        max_size=10,
    )
)
def test_topics_and_queries_of_any_text(asks):
    async def run():
        async with serving() as started:
            for template, topic, query in asks:
                url = started.caller.url + template.replace("{topic}", "")
                path = started.caller.session._build_url(url).with_path("/") / template.split("/")[1] / "topics" / topic
                if "{topic}" in template:
                    path = path / template.rsplit("/", 1)[1] if not template.endswith("}") else path
                call = started.caller.session.post if template in POSTS else started.caller.session.get
                options = {"json": {"text": "x"}} if template in POSTS else {}
                async with call(path.with_query(query), **options) as response:
                    assert response.status < 500, await response.text()

    asyncio.run(run())


@settings(max_examples=20)
@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: json.dumps({"text": text}).encode()[:-2]))
def test_bodies_of_any_bytes(body):
    async def run():
        async with serving() as started:
            for path in POSTS:
                answer = await started.caller.post(path.replace("{topic}", "T"), body)
                assert (answer.status, answer.json["outcome"]) == (400, "not_stored")
            assert not started.backend.sent

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"[" * 100_000, "got `array`"),
        (b'{"json": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"json": "\xff"}', "no UTF-8 at byte 10"),
        (b'{"text": "a", "json": 1}', "a message has exactly one of text, base64 and json"),
        (b"{}", "a message has exactly one of text, base64 and json"),
        (b"[]", "length >= 1"),
        (b'{"text": "a", "delay_seconds": 1, "deliver_at": "2030-01-01T00:00:00Z"}', "not both"),
        (b'{"text": "a", "deliver_at": "2030-01-01T00:00:00"}', "timezone"),
        (b'{"text": "a", "delay_seconds": -1}', ">= 0"),
        (b'{"text": "a", "delay_seconds": 1e400}', ""),
        (b'{"base64": "a"}', "base64"),
        (b'{"text": 1}', "`$.text`"),
        (b'{"text": "a", "properties": {"a": 1}}', "`$.properties[...]`"),
        (b'{"text": "a", "tags": "x"}', "unknown field `tags`"),
        (b"[" + b",".join([b'{"text":"a"}'] * 1_001) + b"]", "length <= 1000"),
    ],
)
async def test_the_answer_names_the_mistake_in_a_message(body, detail):
    async with serving() as started:
        answer = await started.caller.post("/v1/topics/T/messages", body)
        assert (answer.status, started.backend.sent) == (400, [])
        assert detail in answer.json["detail"]


@pytest.mark.parametrize(
    ("headers", "status", "detail"),
    [
        ({"Content-Type": "text/plain"}, 415, "Content-Type is 'text/plain': send JSON"),
        ({"Content-Encoding": "gzip"}, 415, "without compression"),
        ({"Idempotency-Key": "a b"}, 400, "expected 1 to 128 visible ASCII characters"),
        ({"Idempotency-Key": "a" * 129}, 400, "expected 1 to 128 visible ASCII characters"),
        ({"Idempotency-Key": ""}, 400, "expected 1 to 128 visible ASCII characters"),
    ],
)
async def test_the_answer_names_the_mistake_in_a_header(headers, status, detail):
    async with serving() as started:
        answer = await started.caller.post(
            "/v1/topics/T/messages", {"text": "x"}, headers=headers, skip_auto_headers=()
        )
        assert (answer.status, started.backend.sent) == (status, [])
        assert detail in answer.json["detail"]


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("?timeout_seconds=0", ">= 0.1"),
        ("?timeout_seconds=nan", ""),
        ("?timeout_seconds=1&timeout_seconds=2", "'timeout_seconds' more than once"),
        ("?timeout=1", "unknown field `timeout`"),
    ],
)
async def test_the_answer_names_the_mistake_in_a_query(query, detail):
    async with serving() as started:
        answer = await started.caller.post("/v1/topics/T/messages" + query, {"text": "x"})
        assert (answer.status, started.backend.sent) == (400, [])
        assert detail in answer.json["detail"]


async def test_paths_and_methods_that_there_are_not():
    async with serving() as started:
        assert (await started.caller.get("/v2/topics")).status == 404
        assert (await started.caller.get("/v1/topics/T/messages")).status == 405
        async with started.caller.session.delete(started.caller.url + "/v1/topics/T") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET")
            assert "see /v1/openapi.json" in (await response.json(content_type=None))["detail"]
        assert started.metric("dledger_proxy_http_requests_total", operation="none", status="404") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02garbage\r\n\r\n",
        b"GET /v1/topics HTTP/9.9\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST /v1/topics/T/messages HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/topics/T/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        (
            b"POST /v1/topics/T/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n"
        ),
    ],
)
async def test_clients_that_speak_no_http_get_400_and_at_most_one_line_in_the_log(sent, caplog):
    async with serving() as started, asyncio.timeout(10):
        for _ in range(3):
            async with raw_connection(started.front) as (reader, writer):
                writer.write(sent)
                assert (await reader.readline()).split()[1] == b"400"
        assert (await started.caller.get("/v1/topics")).status == 200, "others are served"
    lines = [record for record in caplog.records if record.name.startswith("dledger")]
    assert [record.exc_info for record in lines] in ([], [None]), "a traceback would say nothing of the client"
