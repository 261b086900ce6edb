"""A front over a backend in memory, and checks of its answers by the OpenAPI document."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from jsonschema import Draft202012Validator
from prometheus_client import CollectorRegistry
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from dledger_base.openapi import document
from dledger_client import Credentials, Message, MessageQueue, QueueStatus, ReceivedMessage, SendResult
from dledger_proxy.http import HttpFront, HttpKeys
from dledger_proxy.http.backend import Caller as Sender
from dledger_proxy.http.backend import Subscription, TailBatch, TailRequest
from dledger_proxy.http.handles import Cursor, Receipt
from dledger_proxy.http.operations import INTERFACE
from dledger_remoting.pop import CheckPoint, Retry
from dledger_remoting.properties import POP_CHECK_POINT

JSON = {"Content-Type": "application/json"}
DOCUMENT: dict[str, Any] = json.loads(json.dumps(document(INTERFACE)))
_REGISTRY: Registry[Any] = Registry().with_resource(
    "urn:front", Resource.from_contents(DOCUMENT, default_specification=DRAFT202012)
)


class FakeBackend:
    """A topic `T` of one queue in memory. `failure` is raised by the next call; `gate` holds all calls up."""

    def __init__(self) -> None:
        self.sent: list[tuple[Credentials | None, str, Message, bool | None]] = []
        self.stored: list[ReceivedMessage] = []
        self.put_back: list[ReceivedMessage] = []
        self.settled: list[tuple[Receipt, float | None]] = []
        self.accounts: list[Credentials | None] = []
        self.failure: BaseException | None = None
        self.gone: set[str] = set()
        self.gate: asyncio.Event | None = None
        self.waiting = 0
        self.tail_ended = asyncio.Event()
        self.subscriptions: list[Subscription] = []
        self.tails: list[TailRequest] = []

    async def _enter(self, caller: Sender) -> None:
        self.accounts.append(caller.account)
        if self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        if self.failure is not None:
            raise self.failure

    def store(self, body: bytes = b"hello", **fields: Any) -> ReceivedMessage:
        """Store a message that a group can take, as if it had taken it."""
        offset = len(self.stored)
        point = CheckPoint(offset, 1_796_000_000_000, 30_000, False, Retry.NONE, "broker-a", 0, offset)
        properties = {"colour": "red", POP_CHECK_POINT: point.text, "UNIQ_KEY": f"id-{offset}"}
        message = ReceivedMessage(
            "T",
            body,
            fields.get("tags"),
            fields.get("keys", ()),
            properties,
            MessageQueue("T", "broker-a", 0),
            offset,
            f"id-{offset}",
            "",
            0,
            1_796_000_000_000,
            1_796_000_000_001,
            fields.get("reconsume_times", 0),
            fault=fields.get("fault"),
        )
        self.stored.append(message)
        return message

    async def send(
        self, caller: Sender, topic: str, messages: Sequence[Message], *, idempotent: bool | None, timeout_s: float
    ) -> Sequence[SendResult]:
        await self._enter(caller)
        self.sent += [(caller.account, topic, message, idempotent) for message in messages]
        return [
            SendResult(message.unique_key or "", "", topic, "broker-a", 0, place)
            for place, message in enumerate(messages)
        ]

    async def recall(self, caller: Sender, topic: str, handle: str) -> str:
        await self._enter(caller)
        return f"id of {handle}"

    @asynccontextmanager
    async def receive(
        self, caller: Sender, subscription: Subscription, max_messages: int, wait_s: float
    ) -> AsyncIterator[Sequence[ReceivedMessage]]:
        self.subscriptions.append(subscription)
        await self._enter(caller)
        messages, self.stored = self.stored[:max_messages], self.stored[max_messages:]
        try:
            yield messages
        except BaseException:
            self.put_back += messages
            raise

    async def ack(self, caller: Sender, receipt: Receipt) -> bool:
        await self._enter(caller)
        self.settled.append((receipt, None))
        return receipt.message_id not in self.gone

    async def hide(self, caller: Sender, receipt: Receipt, seconds: float) -> Receipt | None:
        await self._enter(caller)
        self.settled.append((receipt, seconds))
        return None if receipt.message_id in self.gone else receipt

    async def tail(self, caller: Sender, request: TailRequest, ping_s: float) -> AsyncGenerator[TailBatch, None]:
        self.tails.append(request)
        await self._enter(caller)
        shown = 0
        try:
            yield TailBatch((), Cursor(request.topic, {"broker-a": [0]}))
            while True:
                messages, shown = self.stored[shown:], len(self.stored)
                if self.failure is not None:
                    raise self.failure
                yield TailBatch(messages, Cursor(request.topic, {"broker-a": [shown]}))
                await asyncio.sleep(min(ping_s, 0.01))
        finally:
            self.tail_ended.set()

    async def topics(self, caller: Sender) -> Sequence[str]:
        await self._enter(caller)
        return ["T"]

    async def queues(self, caller: Sender, topic: str, group: str | None) -> Sequence[QueueStatus]:
        await self._enter(caller)
        return [QueueStatus(MessageQueue(topic, "broker-a", 0), 3, 10, 7 if group == "G" else None)]


def basic(name: str, secret: str) -> dict[str, str]:
    """Return the header that names an account."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}


class Answer(NamedTuple):
    """An answer, which the document allows."""

    status: int
    json: Any
    headers: Mapping[str, str]


class Caller:
    """Calls a front, and checks each answer by the document."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: object, **options: Any) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {**JSON, **options.pop("headers", {})}
        async with self.session.post(self.url + path, data=data, headers=headers, **options) as response:
            return await self._checked(path, response)

    async def get(self, path: str, **options: Any) -> Answer:
        async with self.session.get(self.url + path, **options) as response:
            return await self._checked(path, response)

    async def _checked(self, path: str, response: aiohttp.ClientResponse) -> Answer:
        body = await response.read()
        answer = Answer(response.status, json.loads(body), response.headers)
        check_answer(response.method, path, answer, response.content_type)
        return answer


def operation_at(method: str, path: str) -> dict[str, Any] | None:
    """Return the operation of the document at a path, None without any."""
    parts = path.partition("?")[0].split("/")
    for template, methods in DOCUMENT["paths"].items():
        pattern = template.split("/")
        is_same = len(parts) == len(pattern) and all(q in (p, "{topic}") for p, q in zip(parts, pattern, strict=True))
        if is_same and method.lower() in methods:
            found: dict[str, Any] = methods[method.lower()]
            return found
    return None


def check_answer(method: str, path: str, answer: Answer, content_type: str) -> None:
    """Check that the document of the interface allows an answer."""
    operation = operation_at(method, path)
    if operation is None:
        assert answer.status in {404, 405}
        schema: dict[str, Any] = {"$ref": "urn:front#/components/schemas/Problem"}
        assert content_type == "application/problem+json"
    else:
        content = operation["responses"][str(answer.status)]["content"]
        assert content_type in content, "the document names no such form"
        schema = absolute(content[content_type]["schema"])
    Draft202012Validator(schema, registry=_REGISTRY).validate(answer.json)
    if answer.status >= 400:
        assert answer.json["status"] == answer.status
        assert ("Retry-After" in answer.headers) == (answer.status in {429, 503})
        assert ("WWW-Authenticate" in answer.headers) == (answer.status == 401)


def absolute(schema: Any) -> Any:
    """Return a schema of the document whose references name the document."""
    return json.loads(json.dumps(schema).replace('"#/', '"urn:front#/'))


def check_value(schema: Any, value: object) -> None:
    """Check a value by a schema of the document."""
    Draft202012Validator(absolute(schema), registry=_REGISTRY).validate(value)


class Started(NamedTuple):
    """A front that serves, with what it stands on."""

    backend: FakeBackend
    caller: Sender
    front: HttpFront
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        """Return a sample of the front's metrics, 0 if there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def serving(config: HttpKeys | None = None, **options: Any) -> AsyncIterator[Started]:
    """Serve a front over a backend in memory."""
    backend, registry = FakeBackend(), CollectorRegistry()
    async with (
        HttpFront(config or HttpKeys(), backend, registry=registry, **options) as front,
        aiohttp.ClientSession() as session,
    ):
        yield Started(backend, Caller(session, f"http://127.0.0.1:{front.port}"), front, registry)


@asynccontextmanager
async def raw_connection(front: HttpFront) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection without an HTTP client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    try:
        yield reader, writer
    finally:
        writer.close()
