"""The short benchmark of a backlog consumes it from disk beside sends, and judges its own measurements."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from bench.backlog import (
    GROWTH_MB,
    JUDGED_MESSAGES,
    SLOWER,
    Measured,
    forget_page_cache,
    main,
    measure,
    what_is_slow,
    what_is_wrong,
)
from bench.cluster import running_cluster
from bench.compiler import NoCompilerError, find_compiler
from bench.generator import LoadResult

pytestmark = pytest.mark.long

MESSAGES = 200_000
BODIES_MB = MESSAGES * 100 / 1e6
FIGURES = dict.fromkeys(LoadResult.__struct_fields__, 1) | {"errors": {}, "messages_of_turn": []}
CONSUMED = msgspec.convert(FIGURES | {"acknowledged_total": MESSAGES}, LoadResult)


@pytest.fixture
def disk_path(tmp_path: Path) -> Path:
    """Return a directory whose files come from a disk if they are not in the page cache."""
    system = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True)
    if system.stdout.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is in memory")
    return tmp_path


def test_a_backlog_is_consumed_from_disk_beside_sends(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))
    with running_cluster(disk_path / "cluster", "sync") as cluster:
        found = measure(cluster, MESSAGES, 1.0)
    assert what_is_wrong(found) == []
    assert found.read_mb >= 0.5 * found.stored_mb > 0.5 * BODIES_MB
    printed = capsys.readouterr().out
    assert f"{MESSAGES} messages stored" in printed
    assert f" {found.read_mb:.0f} MB read from it, errors: {{}}" in printed
    assert "sends beside the consumer: " in printed
    assert "sends lost " in printed


def test_forget_page_cache_drops_cached_pages_and_keeps_the_files(disk_path: Path) -> None:
    (disk_path / "node").mkdir()
    path = disk_path / "node" / "log"
    path.write_bytes(bytes(1 << 20))
    assert forget_page_cache(disk_path) >= 1 << 20
    assert cached_pages(path) == 0
    assert path.read_bytes() == bytes(1 << 20)
    assert cached_pages(path) == (1 << 20) // mmap.PAGESIZE


def cached_pages(path: Path) -> int:
    """Count the pages of a file that are in the page cache, without reading one.

    A read with RWF_NOWAIT does not tell: it begins to read ahead, and succeeds if the disk is fast enough.
    """
    system = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        resident = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        start = ctypes.c_char.from_buffer(mapped)
        failed = system.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(len(mapped)), resident)
        del start  # the file cannot be unmapped while this points into it
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in resident)


def measured(**found: object) -> Measured:
    fine = Measured(MESSAGES, 100.0, 50.0, CONSUMED, [CONSUMED], [CONSUMED], {"n0": GROWTH_MB})
    return replace(fine, **found)  # type: ignore[arg-type]


def sends(*rates: float) -> list[LoadResult]:
    return [msgspec.structs.replace(CONSUMED, messages_per_s=rate) for rate in rates]


def test_a_backlog_run_reports_errors_missing_messages_and_memory_problems() -> None:
    assert what_is_wrong(measured()) == []
    refused = [msgspec.structs.replace(CONSUMED, errors={"2": 1})]
    fewer = msgspec.structs.replace(CONSUMED, acknowledged_total=MESSAGES - 1)
    from_memory = "only 49 MB of a backlog of 100 MB came from disk: is --work-dir on one?"
    for found, said in (
        (measured(alone=refused), "errors: {'2': 1}"),
        (measured(beside=refused), "errors: {'2': 1}"),
        (measured(consumed=fewer), "199999 messages were consumed, 200000 were stored"),
        (measured(read_mb=49.0), from_memory),
        (measured(grown_mb={"n0": GROWTH_MB + 1}), f"n0 took {GROWTH_MB + 1} MB more meanwhile"),
    ):
        assert what_is_wrong(found) == [said]


def slow(messages: int, alone: Sequence[float], beside: Sequence[float]) -> list[str]:
    return what_is_slow(measured(messages=messages, alone=sends(*alone), beside=sends(*beside)))


def test_sends_slowed_too_much_by_the_consumer_are_reported_by_medians() -> None:
    alone, least = (100, 1_000, 9_000), 1_000 * (1 - SLOWER)
    assert slow(JUDGED_MESSAGES, alone, (1, least, 5_000)) == []
    assert slow(JUDGED_MESSAGES, alone, (2_000,)) == [], "nor if they are faster"
    assert slow(JUDGED_MESSAGES, alone, (1, 750, 5_000)) == [
        "sends were 25% slower beside the consumer, 750/s instead of 1,000/s"
    ]


def test_sends_beside_less_than_30_million_messages_are_not_judged() -> None:
    assert slow(29_999_999, (1_000,), (1,)) == []
    assert len(slow(30_000_000, (1_000,), (1,))) == 1
    told = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "With 30,000,000 messages or more, it also fails if sends lose more than 15 %" in told
    assert "With fewer messages the loss is only printed" in told
