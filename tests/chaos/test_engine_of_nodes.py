"""Chaos runs can use nodes of either engine."""

from pathlib import Path

import pytest

from dledger_chaos.errors import ChaosError
from dledger_chaos.local import LocalTarget
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
    monkeypatch.setattr(target, "_run_dledger", dledger)
    monkeypatch.setattr(target._proxies, "start", start)
    monkeypatch.setattr(target, "_make_links", list)
    monkeypatch.setattr(target, "_format_addresses", str)
    await target._start_processes()
    (up,) = said
    assert up[0] == "up"
    assert (up[up.index("--engine") + 1] if "--engine" in up else None) == engine


def test_choosing_an_engine_for_a_target_without_engines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match="have no engine to choose"):
        make_target("register", tmp_path, seed=1, engine="pysyncobj")
