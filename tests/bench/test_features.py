"""Every benchmark runs by a target of `make`, and the pages list them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import features
from bench.features import FEATURES, Feature

ROOT = Path(__file__).resolve().parents[2]


def programs() -> set[str]:
    """Return the modules of `bench` that can be run."""
    return {path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text()}


def test_every_benchmark_has_a_target():
    makefile = (ROOT / "Makefile").read_text()
    of_targets = {name for name in programs() if f"bench.{name}" in makefile} | {"run", "compare"}
    assert programs() - of_targets == {feature.module for feature in FEATURES.values()}


def test_the_page_lists_the_features_with_what_they_measure():
    page = (ROOT / "bench/README.md").read_text()
    rows = [f"| `{name}` | `{feature.module}` | {feature.measures} |" for name, feature in FEATURES.items()]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize("failing", [False, True])
def test_a_benchmark_that_fails_keeps_no_other_from_running(monkeypatch, tmp_path, failing):
    (tmp_path / "bench").mkdir()
    for name, code in (("first", f"import sys; sys.exit({int(failing)})"), ("second", "open('ran', 'w')")):
        (tmp_path / "bench" / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features, "FEATURES", {name: Feature(name, "what it says") for name in ("first", "second")})
    result = CliRunner().invoke(features.main, [])
    assert (result.exit_code, (tmp_path / "ran").exists()) == (int(failing), True)
    assert ("these failed: first" in result.output) == failing
