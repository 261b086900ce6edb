"""Two checkouts are measured in turn, and the medians of the ratios of pairs are shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from click.testing import CliRunner

from bench import compare
from bench.compare import Comparison, Pair, Turn, main
from bench.generator import LoadResult

RUN = """#!{python}
import json, sys
from pathlib import Path
count = Path("count"); number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
with open("{turns}", "a") as turns: print("{name}", file=turns)
rate = json.loads(Path("rates.json").read_text())[number]
node = dict(role="leader", cpu_us_per_message={cpu}, cpu_share=0.1, rss_anon_mb=1.0)
load = dict({load})
load["messages_per_s"] = rate
limits = dict(fdatasync_64k_us=1, fdatasync_64k_per_s=1, loopback_round_trip_us=1, memory_copy_gb_per_s=1,
              may_give_memory_back=False)
report = dict(machine={{}}, limits=limits, idle=[], failover=None, loads={{"sync-1x64": dict(
    flush="sync", target_messages_per_s=0, target_p99_ms=0, runs=[dict(start_s=1.0, load=load, nodes=[node, node])])}})
Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps(report))
"""

EMPTY = {"dict": {}, "list": [], "tuple": []}


def a_checkout(folder: Path, turns: Path, rates: list[float], cpu: float) -> Path:
    """Create a folder whose Python reports these rates, one by one, instead of running anything."""
    load = {name: EMPTY.get(kind.__name__, 1) for name, kind in get_type_hints(LoadResult).items()}
    program = folder / ".venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(RUN.format(python=sys.executable, turns=turns, name=folder.name, cpu=cpu, load=load))
    program.chmod(0o755)
    (folder / "rates.json").write_text(json.dumps(rates))
    return folder


def test_checkouts_take_turns_and_ratios_are_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = tmp_path / "turns"
    other = a_checkout(tmp_path / "other", turns, [100.0, 200.0, 400.0], 10.0)
    monkeypatch.setattr(compare, "ROOT", a_checkout(tmp_path / "this", turns, [90.0, 300.0, 400.0], 12.0))
    output = tmp_path / "out.json"
    arguments = [str(other), "--scenario", "sync-1x64", "--pairs", "3", "--output", str(output)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert turns.read_text().split() == ["other", "this", "this", "other", "other", "this"]
    assert "1.00" in result.output
    assert "1.20" in result.output
    pairs = json.loads(output.read_text())["sync-1x64"]["pairs"]
    assert [pair["this"]["messages_per_s"] for pair in pairs] == [90.0, 300.0, 400.0]


def test_a_checkout_without_a_virtual_environment_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path), "--scenario", "sync-1x64"])
    assert result.exit_code == 1
    assert f"{tmp_path} has no .venv: run make bench there once" in result.output


def test_a_scenario_without_cpu_times_has_no_ratio_of_them() -> None:
    pairs = [Pair(Turn(100.0, None), Turn(rate, None)) for rate in (80.0, 90.0, 300.0)]
    comparison = Comparison(pairs)
    assert comparison.rate == 0.9
    assert comparison.cpu is None
