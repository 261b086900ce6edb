"""`make test` runs every test once, fails if one fails, and keeps within its budget of processor time."""

import ast
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.repo.ci_programs import ROOT, ci_module


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Create a tree with a test and a long test in each folder that has a lane. Each test leaves a file behind."""
    module = ci_module("test")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    lanes = {"chaos": ("tests/chaos",), "broker": ("tests/broker",), module.OTHER: ("tests",)}
    monkeypatch.setattr(module, "LANES", lanes | {"part": ("tests/broker/part",)})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folders = ["tests/chaos", "tests/broker/rest", "tests/broker/part", "tests/other"]
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers = long\n")
    for folder in folders:
        path = tmp_path / folder
        path.mkdir(parents=True, exist_ok=True)
        (path / f"test_{path.name}.py").write_text(
            "import pathlib, pytest\nROOT = pathlib.Path(__file__)\n"
            "def left(kind):\n"
            "    (ROOT.parent / kind).touch(exist_ok=False)\n"
            "    assert not (ROOT.parent / 'failing').exists()\n"
            "def test_short():\n    left('short')\n"
            "@pytest.mark.long\ndef test_long():\n    left('long')\n"
        )
    return module, [tmp_path / folder for folder in folders]


def test_each_test_runs_in_one_part_and_a_failure_fails_the_run(tree, capsys):
    module, folders = tree
    (folders[-2] / "failing").touch()
    assert module.main([]) == 1
    assert all((folder / "short").exists() and not (folder / "long").exists() for folder in folders)
    said = capsys.readouterr().out
    assert "FAILED after" in said
    assert f"not run: {len(folders)} long tests of {len(folders)} modules, which `make test-all` runs" in said
    (folders[-2] / "failing").unlink()
    for folder in folders:
        (folder / "short").unlink()
    assert module.main(["long"]) == 0
    assert all((folder / "long").exists() and not (folder / "short").exists() for folder in folders)


def test_every_folder_that_has_a_lane_exists():
    module = ci_module("test")
    lanes = chain(*module.LANES.values(), module.ON_NATIVE, module.REQUESTS_ON_NATIVE)
    assert all((ROOT / path).exists() for path in lanes)


COSTS = ci_module("billing")
BUDGET = COSTS.Budget(
    {"test": 100.0, "long": 500.0},
    20.0,
    {"test": {"tests/a.py": 5.0, "tests/b.py": 9.0, "tests/d.py": 4.0}, "long": {}},
)


def bill(**modules):
    named = {f"tests/{name}.py": seconds for name, seconds in modules.items()}
    return COSTS.Bill({"other": sum(named.values()) + 90.0}, named, {}, {})


def test_a_run_above_the_budget_names_the_modules_that_grew_and_a_dear_one():
    assert BUDGET.excess("test", bill(a=4.0, b=6.0)) == ""
    assert BUDGET.excess("long", bill(a=30.0, b=6.0)) == ""
    said = BUDGET.excess("test", bill(a=14.0, b=9.0, c=1.0, d=3.0)).splitlines()
    assert "117 s of processor time are above the budget of 100 s" in said[0]
    assert said[1:] == ["  tests/a.py: 14.0 s, 5.0 s before"]
    assert "tests/c.py took 31.0 s of processor time, above 1.0 x 1.5 x 20 s" in BUDGET.excess("test", bill(c=31.0))


def test_a_slow_machine_is_not_taken_for_dear_tests():
    on_slow_machine = {"a": 15.0, "b": 25.0, "d": 12.0}
    assert BUDGET.excess("test", bill(**on_slow_machine, c=80.0)) == ""
    said = BUDGET.excess("test", bill(**on_slow_machine, c=100.0))
    assert "tests/c.py took 100.0 s of processor time, above 3.0 x 1.5 x 20 s" in said
    assert BUDGET.excess("test", bill(a=1.0, b=1.0, c=31.0, d=1.0)) != ""


def test_processes_that_a_module_starts_are_charged_to_it(tmp_path):
    (tmp_path / "test_dear.py").write_text(
        "import subprocess, sys\n"
        "LOOP = 'import time\\nwhile time.process_time() < 0.5: pass\\nprint(flush=True)\\ninput()'\n"
        "def test():\n"
        "    child = subprocess.Popen([sys.executable, '-c', LOOP], stdin=-1, stdout=-1)\n"
        "    child.stdout.readline()\n"
    )
    (tmp_path / "test_cheap.py").write_text("def test():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.costs", "--costs=c.json", "--junitxml=c.xml"]
    subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir=.", "."], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=False
    )
    read = COSTS.read({"lane": (tmp_path / "c.json", tmp_path / "c.xml")})
    assert read.modules["test_dear.py"] > 0.4
    assert read.modules["test_cheap.py"] < 0.25
    assert read.total == pytest.approx(read.lanes["lane"])


LONG = "pytest.mark.long"
"""Mark of long tests. If only some cases of a test are long, the mark is within its parameters."""


def short_tests_of(file: Path) -> set[str]:
    """Return the names of a module's tests that `make test` runs."""
    module = ast.parse(file.read_text()).body
    marks = [one.value for one in module if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"]
    if any(LONG in ast.unparse(mark) for mark in marks):
        return set()
    tests = [one for one in module if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        one.name for one in tests if one.name.startswith("test_") and LONG not in map(ast.unparse, one.decorator_list)
    }


def is_run(file: str, name: str) -> bool:
    """Return whether `make test` runs a test, some test of a module, or some module that imports this helper."""
    path = ROOT / file
    if path.name.startswith("test_"):
        short = short_tests_of(path)
        return bool(short) if not name else name in short
    users = [one for one in path.parent.glob("test_*.py") if re.search(rf"\b{path.stem}\b", one.read_text())]
    return any(short_tests_of(one) for one in users) or not users


def promises() -> list[str]:
    """Return the rows of promises that tests hold, without those that name another target than `make test`."""
    page = (ROOT / "docs/promises.md").read_text()
    tables = page.split("\n## In tests\n")[1].split("\n## ")[0]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and "`tests/" in line]
    return [row for row in rows if "`make " not in row]


def test_make_test_holds_every_promise_that_names_no_other_target():
    assert len(promises()) > 60
    named = {row: re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in promises()}
    assert [row for row, tests in named.items() if not any(is_run(*test) for test in tests)] == []


def test_the_budget_is_written_as_it_is_read(tmp_path):
    budget, results = tmp_path / "budget.toml", tmp_path / "results"
    budget.write_text((ROOT / ".ci/budget.toml").read_text())
    (results / "long").mkdir(parents=True)
    (results / "long" / "lane.json").write_text('{"seconds": {"tests/test_a.py": 7.25}, "left_out": {}}')
    COSTS.write_budget(budget, results)
    before, after = COSTS.load_budget(ROOT / ".ci/budget.toml"), COSTS.load_budget(budget)
    assert after == before._replace(modules={**before.modules, "long": {"tests/test_a.py": 7.2}})
