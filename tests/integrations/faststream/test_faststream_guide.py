"""The guide's programs and the example run as they stand, on a cluster."""

from __future__ import annotations

import asyncio
import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_client import Producer, PushConsumer

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guides/faststream.md").read_text("utf-8")
PROGRAM, IN_TESTS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


async def test_the_first_example_bills_an_order_and_ends_when_it_is_told_to(cluster, tmp_path):
    assert len(PROGRAM.splitlines()) <= 15
    program = tmp_path / "service.py"
    program.write_text(PROGRAM.replace("127.0.0.1:9876", cluster.namesrv))
    service = await asyncio.create_subprocess_exec(sys.executable, program, stderr=subprocess.PIPE)
    try:
        async with asyncio.timeout(30), Producer(cluster.namesrv) as producer:
            await producer.send("orders", b'{"id": 1}', properties={"content-type": "application/json"})
            async with PushConsumer(cluster.namesrv, "guide-readers", "invoices") as consumer:
                assert (await anext(consumer)).body == b'{"invoice":1}'
            service.send_signal(signal.SIGTERM)
            _, errors = await service.communicate()
    finally:
        if service.returncode is None:
            service.kill()
    assert service.returncode == 0
    assert b"Traceback" not in errors


async def test_the_test_of_the_guide_passes_without_a_cluster(tmp_path, monkeypatch):
    """FastStream looks into the source of a test that begins a `TestDledgerBroker`, so there is a file."""
    body = "".join(f"    {line}\n" for line in IN_TESTS.splitlines())
    service = PROGRAM.replace("asyncio.run(app.run())", "from dledger_faststream import TestDledgerBroker")
    (tmp_path / "guide_service.py").write_text(f"{service}\nasync def check():\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    await importlib.import_module("guide_service").check()


@pytest.mark.long
def test_the_example_prints_its_invoices(cluster):
    example = ROOT / "examples/faststream_service.py"
    done = subprocess.run(
        [sys.executable, example, cluster.namesrv], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["lamp: 300", "sofa: 900"]
    assert "Traceback" not in done.stderr
