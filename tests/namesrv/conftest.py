"""Fixtures of several tests of a name server."""

import asyncio
import logging
import os

import pytest
from served_names import PATIENCE_S, SlowDisk, connected, serving


@pytest.fixture
async def server(tmp_path):
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server):
    async with connected(server) as one:
        yield one


@pytest.fixture
async def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture):
    """Return a function that waits for a line of the server's log."""
    lines: list[str] = []
    arrived = asyncio.Event()

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            arrived.set()

    async def wait_for(text: str) -> str:
        async with asyncio.timeout(PATIENCE_S):
            while not any(text in line for line in lines):
                arrived.clear()
                await arrived.wait()
        return next(line for line in lines if text in line)

    loggers = [logging.getLogger(name) for name in ("dledger.namesrv", "dledger_base")]
    handler = Keep()
    for logger in loggers:
        caplog.set_level(logging.INFO, logger.name)
        logger.addHandler(handler)
    yield wait_for
    for logger in loggers:
        logger.removeHandler(handler)
