"""The benchmark of a backlog, short: all of it is consumed from disk beside sends, and memory does not grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.backlog import GROWTH_MB, SLOWER, Measured, measure, what_is_slow, what_is_wrong
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
        assert what_is_wrong(measure(cluster, MESSAGES, 1.0)) == []
    printed = capsys.readouterr().out
    assert f"{MESSAGES} messages stored" in printed
    assert "errors: {}" in printed
    assert "sends beside the consumer: " in printed


def measured(**found: object) -> Measured:
    fine = Measured(MESSAGES, CONSUMED, [CONSUMED], [CONSUMED], {"n0": GROWTH_MB})
    return replace(fine, **found)  # type: ignore[arg-type]


def sends(*rates: float) -> list[LoadResult]:
    return [msgspec.structs.replace(CONSUMED, messages_per_s=rate) for rate in rates]


def test_errors_missing_messages_and_memory_that_grows_are_told() -> None:
    refused = msgspec.structs.replace(CONSUMED, errors={"2": 1})
    fewer = msgspec.structs.replace(CONSUMED, acknowledged_total=MESSAGES - 1)
    assert what_is_wrong(measured()) == []
    assert what_is_wrong(measured(alone=[refused])) == ["errors: {'2': 1}"]
    assert what_is_wrong(measured(beside=[refused])) == ["errors: {'2': 1}"]
    assert what_is_wrong(measured(consumed=fewer)) == ["199999 messages were consumed, 200000 were stored"]
    assert what_is_wrong(measured(grown_mb={"n0": GROWTH_MB + 1})) == [f"n0 took {GROWTH_MB + 1} MB more meanwhile"]


def test_sends_that_lose_too_much_to_the_consumer_are_told_by_their_medians() -> None:
    alone, least = sends(100, 1_000, 9_000), 1_000 * (1 - SLOWER)
    assert what_is_slow(measured(alone=alone, beside=sends(1, least, 5_000))) == []
    assert what_is_slow(measured(alone=alone, beside=sends(2_000))) == [], "nor if they are faster"
    assert what_is_slow(measured(alone=alone, beside=sends(1, 750, 5_000))) == [
        "sends were 25% slower beside the consumer, 750/s instead of 1,000/s"
    ]
