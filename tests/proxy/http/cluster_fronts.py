"""Fronts before a real cluster, each with clients of its own, as proxies on several machines have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from http_fronts import Caller

from dledger_proxy.http import ClientBackend, HttpFront, HttpKeys


@asynccontextmanager
async def proxy(namesrv: str, config: HttpKeys | None = None, **options: Any) -> AsyncIterator[Caller]:
    """Serve a front before a cluster."""
    async with (
        ClientBackend(namesrv, **options) as backend,
        HttpFront(config or HttpKeys(), backend) as front,
        aiohttp.ClientSession() as session,
    ):
        yield Caller(session, f"http://127.0.0.1:{front.port}")


async def send(caller: Caller, topic: str, *texts: str, **options: Any) -> list[Any]:
    """Send messages, and return their places."""
    answer = await caller.post(f"/v1/topics/{topic}/messages", [{"text": text} for text in texts], **options)
    assert answer.status == 200, answer.json
    return answer.json["messages"]


async def take(caller: Caller, topic: str, group: str, **request: Any) -> list[Any]:
    """Take messages, and wait for the first."""
    body = {"group": group, "max": 32, "wait_seconds": 20, **request}
    answer = await caller.post(f"/v1/topics/{topic}/receive", body)
    assert answer.status == 200, answer.json
    return answer.json["messages"]


async def settle(caller: Caller, how: str, topic: str, group: str, receipts: list[str], **request: Any) -> list[Any]:
    """End deliveries, and return the results."""
    body = {"group": group, "receipts": receipts, **request}
    answer = await caller.post(f"/v1/topics/{topic}/{how}", body)
    assert answer.status == 200, answer.json
    return answer.json["results"]
