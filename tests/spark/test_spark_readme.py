"""The examples of the project's README, run in the order in which they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger_client.testing import LocalCluster

README = Path(__file__).parents[2] / "README.md"


def test_what_the_client_example_sends_the_spark_example_shows(
    spark: SparkSession, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    client_example, spark_example = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    run(client_example, cluster)
    said = capsys.readouterr().out
    assert re.fullmatch(r"stored as [0-9A-F]{32} in queue \d at offset 0\nhello\n", said), said
    run(spark_example, cluster)
    shown = capsys.readouterr().out
    assert re.search(r"^\|hello\| +\d+\| +0\|\d{4}-\d\d-\d\d ", shown, re.MULTILINE), shown


def run(example: str, cluster: LocalCluster) -> None:
    exec(compile(example.replace("127.0.0.1:9876", cluster.namesrv), str(README), "exec"), {"__name__": "readme"})
