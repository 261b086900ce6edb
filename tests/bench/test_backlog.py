"""The benchmark of a backlog, short: all of it is consumed from disk beside sends, and memory does not grow."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.backlog import GROWTH_MB, measure, what_is_wrong
from bench.cluster import running_cluster
from bench.compiler import NoCompilerError, find_compiler
from bench.generator import LoadResult

MESSAGES = 200_000
FIGURES = dict.fromkeys(LoadResult.__struct_fields__, 1) | {"errors": {}, "messages_of_turn": []}
CONSUMED = msgspec.convert(FIGURES | {"acknowledged_total": MESSAGES}, LoadResult)


def test_a_backlog_is_consumed_from_disk_beside_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    with running_cluster(tmp_path / "cluster", "sync") as cluster:
        assert measure(cluster, MESSAGES, 1.0) == []
    printed = capsys.readouterr().out
    assert f"{MESSAGES} messages stored" in printed
    assert "errors: {}" in printed
    assert "sends beside the consumer: " in printed


def test_errors_missing_messages_and_memory_that_grows_are_told() -> None:
    refused = msgspec.structs.replace(CONSUMED, errors={"2": 1})
    fewer = msgspec.structs.replace(CONSUMED, acknowledged_total=MESSAGES - 1)
    assert what_is_wrong(MESSAGES, CONSUMED, [CONSUMED], {"n0": GROWTH_MB}) == []
    assert what_is_wrong(MESSAGES, CONSUMED, [refused], {}) == ["errors: {'2': 1}"]
    assert what_is_wrong(MESSAGES, fewer, [], {}) == ["199999 messages were consumed, 200000 were stored"]
    assert what_is_wrong(MESSAGES, CONSUMED, [], {"n0": GROWTH_MB + 1}) == [
        f"n0 took {GROWTH_MB + 1} MB more meanwhile"
    ]
