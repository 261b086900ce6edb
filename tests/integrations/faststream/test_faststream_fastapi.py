"""FastStream's package for FastAPI runs the broker beside a FastAPI application."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from faststream_fastapi import FastStreamAPI
from waiting import wait_until

pytestmark = pytest.mark.long


def currency() -> str:
    return "EUR"


def test_fastapi_runs_the_broker_and_resolves_the_dependencies_of_handlers(real_broker, topic, group, seen):
    @real_broker.subscriber(topic, group=group)
    async def bill(order: dict[str, int], unit: Annotated[str, Depends(currency)]):
        seen.append((order, unit))

    app = FastAPI()

    @app.post("/orders/{number}")
    async def order(number: int) -> str:
        result = await real_broker.publish({"id": number}, topic)
        return result.topic

    with TestClient(FastStreamAPI(real_broker, application=app, safe_connection=True)) as client:
        assert client.post("/orders/7").json() == topic
        wait_until(lambda: seen)
    assert seen == [({"id": 7}, "EUR")]
