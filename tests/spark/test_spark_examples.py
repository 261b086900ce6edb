"""The examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dledger_client import SyncProducer
from dledger_client.testing import LocalCluster

ROOT = Path(__file__).parents[2]


def run(name: str, cluster: LocalCluster) -> list[str]:
    return run_file(ROOT / "examples" / name, cluster)


def run_file(file: Path, cluster: LocalCluster) -> list[str]:
    command = [sys.executable, str(file), cluster.namesrv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_batch_example(cluster: LocalCluster) -> None:
    assert run("spark_batch.py", cluster) == ["large: 100", "small: 900", "sum: 499500"]


def test_the_stream_example(cluster: LocalCluster) -> None:
    assert run("spark_stream.py", cluster) == ["copied: 100", "lag: 0"]


def test_the_example_of_the_readme(cluster: LocalCluster, tmp_path: Path) -> None:
    with SyncProducer(cluster.namesrv, idempotent=True) as producer:
        producer.send("greetings", b"hello")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [example] = [block for block in blocks if "spark_session" in block]
    program = tmp_path / "example.py"
    program.write_text(example.replace("127.0.0.1:9876", cluster.namesrv))
    assert any(line.startswith("|hello|") for line in run_file(program, cluster))
