"""A sample of the slips is caught, each by the check that its promise names. `make slips` tries all of them."""

import subprocess
import sys

import pytest

from tests.repo.ci_programs import ROOT

SAMPLE = 10


@pytest.mark.long
def test_ten_slips_drawn_by_the_commits_number_are_caught() -> None:
    command = [sys.executable, ".ci/slips.py", "--sample", str(SAMPLE), "--without-clean", "--jobs", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0, f"make slips SAMPLE={SAMPLE}"
