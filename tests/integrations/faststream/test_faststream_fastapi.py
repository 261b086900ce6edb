"""FastStream's package for FastAPI runs the broker beside a FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI
from faststream_fastapi import FastStreamAPI
from waiting import until

pytestmark = pytest.mark.long


def currency() -> str:
    return "EUR"


@asynccontextmanager
async def served(app: FastStreamAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an application on a free port. Yields a client of it."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        server.should_exit = True
        await serving


async def test_fastapi_runs_the_broker_and_resolves_the_dependencies_of_handlers(real_broker, topic, group, seen):
    @real_broker.subscriber(topic, group=group)
    async def bill(order: dict[str, int], unit: Annotated[str, Depends(currency)]):
        seen.append((order, unit))

    app = FastAPI()

    @app.post("/orders/{number}")
    async def order(number: int) -> str:
        result = await real_broker.publish({"id": number}, topic)
        return result.topic

    async with served(FastStreamAPI(real_broker, application=app, safe_connection=True)) as client:
        assert (await client.post("/orders/7")).json() == topic
        assert await seen.come(1) == [({"id": 7}, "EUR")]
    assert not real_broker.running
