"""A node whose version is older than what its group uses ends with a text that says what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from broker_in_process import node_config, toml_of, until

from dledger_broker.features import FEATURES
from dledger_broker.node import Broker
from tests.broker.toy import FEATURE


async def test_a_downgraded_node_refuses_to_run_and_names_the_feature(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    broker = Broker(config, features=(*FEATURES, FEATURE), bootstrap=True)
    await broker.start()
    await until(lambda: broker.machine.is_active(FEATURE.name))
    await broker.stop()
    path = tmp_path / "broker.toml"
    path.write_text(toml_of(config))
    command = [sys.executable, "-m", "dledger_broker", "--config", str(path)]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    assert "uses the feature 'reminders'" in ended.stderr
    assert "upgrade this node" in ended.stderr
