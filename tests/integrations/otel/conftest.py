"""An instrumented client whose spans and metrics stay in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.client.client_fakes import FakeCluster, fake_cluster
from tests.integrations.otel.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Instrument the client for a test."""
    telemetry = Telemetry()
    with telemetry.recording():
        yield telemetry


@pytest.fixture
async def fakes() -> AsyncIterator[FakeCluster]:
    """Run a fake cluster with a topic `T` of one queue."""
    async with fake_cluster(topics={"T": 1, "%RETRY%CG": 1}) as started:
        yield started
