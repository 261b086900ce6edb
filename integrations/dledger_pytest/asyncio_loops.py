"""Fixtures of clients for pytest-asyncio: one of each for every scope that the event loop of a test can have.

A client belongs to the loop on which it was started. The definition of a fixture names a scope. pytest-asyncio
runs the fixture on the loop of that scope, even if the test has another loop. So the public fixtures choose by the
marker of the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import pytest_asyncio

if TYPE_CHECKING:
    from dledger_client import Producer, PushConsumer
    from dledger_client.testing import LocalCluster

LoopScope: TypeAlias = Literal["function", "class", "module", "package", "session"]


def _make_producer(scope: LoopScope) -> object:
    @pytest_asyncio.fixture(name=f"_dledger_producer_in_{scope}_loop", loop_scope=scope)
    async def producer(dledger_cluster: LocalCluster) -> AsyncIterator[Producer]:
        from dledger_client import Producer

        async with Producer(dledger_cluster.namesrv) as connected:
            yield connected

    return producer


def _make_consumer(scope: LoopScope) -> object:
    @pytest_asyncio.fixture(name=f"_dledger_consumer_in_{scope}_loop", loop_scope=scope)
    async def consumer(dledger_cluster: LocalCluster, dledger_topic: str) -> AsyncIterator[PushConsumer]:
        from dledger_client import PushConsumer

        group = f"{dledger_topic}-consumers"  # deleted with the topic, because its name begins with the topic's
        async with PushConsumer(dledger_cluster.namesrv, group, dledger_topic) as connected:
            yield connected

    return consumer


function_producer, function_consumer = _make_producer("function"), _make_consumer("function")
class_producer, class_consumer = _make_producer("class"), _make_consumer("class")
module_producer, module_consumer = _make_producer("module"), _make_consumer("module")
package_producer, package_consumer = _make_producer("package"), _make_consumer("package")
session_producer, session_consumer = _make_producer("session"), _make_consumer("session")
