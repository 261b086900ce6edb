"""The examples run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dledger_client import SyncProducer
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long
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


def test_the_first_example_of_the_guide(cluster: LocalCluster, tmp_path: Path) -> None:
    with SyncProducer(cluster.namesrv, idempotent=True) as producer:
        producer.send("guide", b"hello")
    example = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/spark.md").read_text(), re.DOTALL)[0]
    program = tmp_path / "example.py"
    # Other modules send to a topic of the name that the guide uses, and `show` prints twenty rows.
    program.write_text(example.replace("127.0.0.1:9876", cluster.namesrv).replace('"orders"', '"guide"'))
    lines = run_file(program, cluster)
    assert any(line.startswith("|hello|") for line in lines), lines
