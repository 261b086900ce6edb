"""Stories catch the known bugs of the pipeline for which they were written, and pass without a bug."""

from __future__ import annotations

import pytest

from dledger_sim.spark.mutants import CATALOGUE


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_known_bug_of_the_pipeline_is_caught_by_its_story(name: str) -> None:
    CATALOGUE[name].story()
    assert CATALOGUE[name].caught()
    CATALOGUE[name].story()
