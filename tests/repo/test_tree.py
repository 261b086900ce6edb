"""The commands in texts exist, and the documentation check finds all of its faults."""

import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.repo.ci_programs import ROOT, ci_module

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


@pytest.fixture
def docs_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the documentation check for an empty tree."""
    module = ci_module("docs")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "bench/README.md", ".ci/run"])
def test_make_commands_in_the_documentation_exist(page: str) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= TARGETS


def test_make_alone_lists_every_target() -> None:
    listing = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {line.split()[0] for line in listing.stdout.splitlines()} == TARGETS


def test_continuous_integration_runs_on_a_python_that_is_new_enough() -> None:
    chosen = subprocess.run([ROOT / ".ci" / "python"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([chosen, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=True)


def test_a_python_that_is_too_old_is_named_in_one_line(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "chaos").mkdir()
    for name in ("pyproject.toml", "chaos/pyproject.toml"):
        (tmp_path / name).write_text("")
    made = subprocess.run(["make", "venv", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode != 0
    assert "Python 3.9.1 found, Python >= 3.11 needed" in made.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("failing", ["nothing", "many_clients", "backlog", "two-groups"])
def test_a_part_of_make_scale_that_fails_keeps_no_other_from_running(tmp_path: Path, failing: str) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (tmp_path / "chaos").mkdir()
    (tmp_path / "Makefile").write_text(MAKEFILE)
    for name in ("pyproject.toml", "chaos/pyproject.toml", ".venv/.installed-dev", ".venv/.installed-chaos"):
        (tmp_path / name).touch()
    for name in ("python", "dledger"):
        (programs / name).write_text(f'#!/bin/sh\necho "$*" >> calls\ncase "$*" in *{failing}*) exit 1; esac\n')
        (programs / name).chmod(0o755)
    made = subprocess.run(["make", "scale", "MESSAGES=5", "MINUTES=1"], cwd=tmp_path, capture_output=True, check=False)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call for call in calls if "ziglang" not in call] == [
        "-m bench.many_clients",
        "-m bench.backlog --messages 5",
        "chaos run --target two-groups --minutes 1",
    ]
    assert (made.returncode == 0) == (failing == "nothing")


def test_every_lint_exception_has_a_reason() -> None:
    lint = (ROOT / "pyproject.toml").read_text().split("[tool.ruff.lint]")[1].split("[tool.ruff.lint.isort]")[0]
    ignores = lint.split("ignore = [", 1)[1]
    bare = [line for line in ignores.splitlines() if re.match(r'\s+"[A-Z]+\d*",', line) and "#" not in line]
    assert not bare


def test_dependencies_the_project_promises_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in declared}
    assert {"pysyncobj", "aiohttp", "pyspark", "pytest", "hypothesis", "toxiproxy-python"} <= names


def test_links_that_lead_nowhere_are_found(docs_check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n")
    (tmp_path / "page.md").write_text(
        "[good](there.md#a-heading-here) [bad](missing.md) [worse](there.md#no) [far](https://example.org)\n"
        "`[code](nowhere.md)`\n```\n[fenced](nowhere.md)\n```\n"
    )
    assert list(docs_check.broken_links(Path("page.md"))) == [
        "page.md: link to missing.md: no such file",
        "page.md: link to there.md#no: no such heading",
    ]


def test_paths_of_one_machine_are_found(docs_check: ModuleType, tmp_path: Path) -> None:
    path = Path("/home", "somebody")
    (tmp_path / "file.py").write_text(f"ROOT = '{path}'")
    (finding,) = docs_check.machine_paths(Path("file.py"))
    assert finding == f"file.py:1: {path} is a path of one machine"
