"""Chaos runs strike nodes of either engine."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger_chaos import run as runs
from dledger_chaos.cli import chaos
from dledger_chaos.errors import ChaosError
from dledger_chaos.local import LocalTarget
from dledger_chaos.run import RunOptions
from dledger_chaos.targets import make_target


@pytest.mark.parametrize("engine", [None, "native", "pysyncobj"])
async def test_a_cluster_is_founded_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str | None
) -> None:
    target = make_target("local", tmp_path, seed=1, engine=engine)
    assert isinstance(target, LocalTarget)
    said: list[tuple[str, ...]] = []

    async def dledger(*arguments: str, timeout_s: float) -> None:
        said.append(arguments)

    async def start(*_: object) -> None: ...

    tmp_path.mkdir(exist_ok=True)
    monkeypatch.setattr(target, "_dledger", dledger)
    monkeypatch.setattr(target._proxies, "start", start)
    monkeypatch.setattr(target, "_links", list)
    monkeypatch.setattr(target, "_addresses", str)
    await target._start()
    (up,) = said
    assert up[0] == "up"
    assert (up[up.index("--engine") + 1] if "--engine" in up else None) == engine


def test_nodes_that_have_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="have no engine to choose"):
        make_target("register", tmp_path, seed=1, engine="pysyncobj")


@pytest.mark.parametrize("drawn", [("--faults", "none"), ("--swarm",)])
def test_the_line_that_repeats_a_run_names_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: tuple[str, ...]
) -> None:
    options: list[RunOptions] = []

    async def run(asked: RunOptions, _say: object) -> None:
        options.append(asked)
        raise ChaosError("enough")

    monkeypatch.setattr(runs, "run", run)
    command = ["run", "--engine", "pysyncobj", "--seed", "3", "--out", str(tmp_path), *drawn]
    CliRunner().invoke(chaos, command)
    assert options[0].engine == "pysyncobj"
    assert "--engine pysyncobj" in options[0].command
