"""The page of promises and the checks say the same, one to one."""

import re
from pathlib import Path

from dledger_chaos.checkers.registry import CHECKS
from dledger_chaos.faults import KINDS
from dledger_chaos.workloads.registry import WORKLOADS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "promises.md").read_text()
CHECKED, FAULTS = PAGE.split("### The faults")[0], PAGE.split("### The faults")[1].split("\n## ")[0]
ROW = re.compile(r"^\| `([\w-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
MESSAGES = re.search(r"\*messages\* are the workloads (.+?)\.", CHECKED, re.DOTALL)


def workloads_in(text: str) -> set[str]:
    if text == "any":
        return set()
    assert MESSAGES is not None
    return set(re.findall(r"`([\w-]+)`", MESSAGES[1] if text == "messages" else text))


def test_every_check_stands_on_the_page_with_its_promise_and_nothing_else_does():
    promised = [(name, promise) for name, promise, _, _ in ROW.findall(CHECKED)]
    assert promised == [(check.name, check.promise) for check in CHECKS]


def test_the_page_names_the_workloads_that_each_check_judges():
    assert {name: workloads_in(text) for name, _, _, text in ROW.findall(CHECKED)} == {
        check.name: set(check.workloads) for check in CHECKS
    }


def test_every_workload_that_a_check_names_exists_and_every_workload_is_judged():
    named = {name for check in CHECKS for name in check.workloads}
    assert named == set(WORKLOADS)


def test_every_class_of_faults_that_can_be_injected_stands_on_the_page():
    classes = set(re.findall(r"^\| (\w+) \|", FAULTS, re.MULTILINE)) - {"class"}
    assert classes == {kind.family for kind in KINDS.values()}
