"""A node whose version is older than what its group uses ends with a text that says what to do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from broker_in_process import node_config

from dledger_broker.features import FEATURES
from dledger_broker.node import Broker
from tests.broker.toy import FEATURE


async def test_a_downgraded_node_refuses_to_run_and_names_the_feature(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    broker = Broker(config, features=(*FEATURES, FEATURE), bootstrap=True)
    active = asyncio.Event()
    await broker.start()
    machine = broker.machine
    machine.on_members_changed.append(lambda: active.set() if machine.is_active(FEATURE.name) else None)
    async with asyncio.timeout(20):
        if not machine.is_active(FEATURE.name):
            await active.wait()
    await broker.stop()
    path = tmp_path / "broker.toml"
    keys = {"broker_group": config.broker_group, "node_id": config.node_id, "data_dir": str(config.data_dir)}
    numbers = {
        "port": config.port,
        "peer_port": config.peer_port,
        "http_port": 0,
        "alias_port": 0,
        "segment_bytes": 1 << 20,
    }
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in keys.items()))
    with path.open("a") as file:
        file.writelines(f"{key} = {value}\n" for key, value in numbers.items())
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "dledger_broker", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    assert "uses the feature 'reminders'" in ended.stderr
    assert "upgrade this node" in ended.stderr
