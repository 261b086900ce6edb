"""The page of promises lists exactly the checks, and the README exactly the workloads."""

import re
from pathlib import Path

from dledger_chaos.checkers.registry import CHECKS
from dledger_chaos.faults import KINDS
from dledger_chaos.workloads.registry import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()
CHECKED, FAULTS = PAGE.split("### The faults")[0], PAGE.split("### The faults")[1].split("\n## ")[0]
ROW = re.compile(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
MESSAGES = re.search(r"\*messages\* are the workloads (.+?)\.", CHECKED, re.DOTALL)


def workloads_in(text: str) -> set[str]:
    if text == "any":
        return set()
    assert MESSAGES is not None
    return set(re.findall(r"`([\w-]+)`", MESSAGES[1] if text == "messages" else text))


def test_the_page_names_the_workloads_and_the_promise_of_each_check_and_no_other():
    rows = ROW.findall(CHECKED)
    assert [(name, promise) for name, promise, _, _ in rows] == [(check.name, check.promise) for check in CHECKS]
    assert [workloads_in(text) for _, _, _, text in rows] == [set(check.workloads) for check in CHECKS]


def test_every_workload_that_a_check_names_exists_and_every_workload_is_judged():
    named = {name for check in CHECKS for name in check.workloads}
    assert named == set(WORKLOADS)


def test_the_readme_lists_every_workload_with_its_summary():
    table = (ROOT / "chaos" / "README.md").read_text().split("| workload | clients |\n|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == [f"| `{entry.name}` | {entry.summary} |" for entry in WORKLOADS.values()]


def test_every_class_of_faults_that_can_be_injected_stands_on_the_page():
    classes = set(re.findall(r"^\| (\w+) \|", FAULTS, re.MULTILINE)) - {"class"}
    assert classes == {kind.family for kind in KINDS.values()}
