"""A web service that takes orders by HTTP and sends them to a topic: lifespan, readiness, typed values.

DLEDGER_NAMESRV=127.0.0.1:9876 uvicorn --app-dir examples fastapi_service:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from dledger_client import Admin, ClientError, Producer, SendError
from dledger_client.codecs import PydanticCodec

TOPIC = "example-web-orders"
NAME_SERVER = os.environ.get("DLEDGER_NAMESRV", "127.0.0.1:9876")


class Order(BaseModel):
    """An order, in the request and in the message."""

    number: int
    euros: float


class State(TypedDict):
    """Clients of the service. They live as long as it does."""

    producer: Producer[Order]
    admin: Admin


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
    """Connect before the first request. After the last one, wait for the sends under way."""
    async with (
        Producer(NAME_SERVER, group="example-web", codec=PydanticCodec(Order), timeout=5) as producer,
        Admin(NAME_SERVER, timeout=1) as admin,
    ):
        yield {"producer": producer, "admin": admin}


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take_order(order: Order, request: Request) -> dict[str, str]:
    """Answer once a majority of the broker group has stored the order. A repeated request stores nothing again."""
    try:
        sent = await request.state.producer.send(TOPIC, order, unique_key=f"order-{order.number}", idempotent=True)
    except SendError as error:  # the caller may repeat the request, whether the message was stored or not
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    return {"message_id": sent.message_id}


@app.get("/live")
async def live() -> None:
    """Answer while the process runs. A restart would not help against a cluster that is away."""


@app.get("/ready")
async def ready(request: Request) -> None:
    """Answer 503 while no leader answers for the topic, so that a load balancer sends requests elsewhere."""
    try:
        await request.state.admin.topic_config(TOPIC)
    except ClientError as error:
        raise HTTPException(503, str(error)) from error
