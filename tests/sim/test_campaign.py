"""Campaigns record failed runs, repeat and shorten them, and add up all runs."""

import gc
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from dledger_sim.brokers.lab import MUTANTS
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case, decode_case, encode_case
from dledger_sim.log.event_loop import SimEventLoop
from dledger_sim.log.figures import write_figures
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import Violation
from dledger_sim.log.run import Outcome
from dledger_sim.log.shrink import shrink
from dledger_sim.log.totals import Totals, load_totals, save_totals

LAB = "dledger_sim.brokers.lab"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("scenario", "seed"), [("log", 3), ("broker", 4)])
def test_a_run_that_was_written_down_repeats_the_seed(scenario: str, seed: int) -> None:
    drawn = judge(Case(scenario, seed, 8.0), LAB)
    assert drawn.violation is None
    assert drawn.strikes
    written = decode_case(encode_case(Case(scenario, seed, 8.0, strikes=tuple(drawn.strikes))))
    repeated = judge(written, LAB)
    assert repeated.strikes == drawn.strikes
    assert (repeated.counts, repeated.committed, repeated.terms) == (drawn.counts, drawn.committed, drawn.terms)


@pytest.mark.parametrize(("mutant", "seed"), [("ack-before-sync", 9)])
def test_a_failing_seed_is_made_short(mutant: str, seed: int) -> None:
    case = Case(MUTANTS[mutant].scenario, seed, 5.0)
    whole = judge(case, LAB, mutant)
    assert whole.violation is not None
    short = shrink(case, lambda case: judge(case, LAB, mutant), deadline=math.inf, tell=lambda _: None)
    assert short is not None
    assert short.strikes is not None
    assert len(short.strikes) <= len(whole.strikes)
    assert short.seconds <= case.seconds
    outcome = judge(decode_case(encode_case(short)), LAB, mutant)
    assert outcome.violation is not None
    assert outcome.violation.promise == whole.violation.promise
    assert judge(short, LAB).violation is None


def test_a_seed_that_breaks_nothing_cannot_be_shrunk() -> None:
    case = Case("log", 1, 1.0)
    assert shrink(case, lambda case: judge(case, LAB), deadline=math.inf, tell=lambda _: None) is None


def test_nothing_of_a_run_stays_in_memory() -> None:
    """This includes nodes that died while requests waited in them."""

    def groups() -> int:
        gc.collect()
        return sum(isinstance(kept, SimGroup) for kept in gc.get_objects())

    before = groups()
    judge(Case("repeats", 5, 10.0), "dledger_sim.brokers.lab")
    assert groups() == before


def outcome(seed: int, **fields: object) -> Outcome:
    return Outcome(Case("log", seed), seconds=10.0, cpu_s=0.5, counts=Counter(ok=3, read=2, other=9), **fields)


def test_totals_go_on_in_another_campaign(tmp_path: Path) -> None:
    state = tmp_path / "totals.json"
    totals = load_totals(state)
    totals.add(outcome(7, injected=Counter({"kill": 2, "isolate": 1})))
    save_totals(state, totals)
    totals = load_totals(state)
    totals.add(outcome(8, injected=Counter(kill=1), violation=Violation("a promise", "how")))
    save_totals(state, totals)
    found = load_totals(state)
    assert (found.next_seed, found.seeds, found.broken, found.simulated_s, found.operations) == (9, 2, 1, 20.0, 10)
    assert found.fault_classes == {"process": 3, "network": 1}
    assert [case.seed for case in found.violations] == [8]


def test_figures_replace_those_of_an_earlier_campaign(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Proof\n", encoding="utf-8")
    write_figures(page, Totals(seeds=3))
    page.write_text(page.read_text(encoding="utf-8") + "\n## More\n", encoding="utf-8")
    write_figures(page, Totals(seeds=4711), "0123abcd")
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"\| seeds \| ([\d,]+)", text) == ["4,711"]
    assert "| commit | `0123abcd` |" in text
    assert text.startswith("# Proof\n")
    assert text.endswith("\n## More\n")


def test_the_page_lists_every_mutant_with_the_promise_it_breaks() -> None:
    page = (ROOT / "docs" / "proof" / "simulator.md").read_text(encoding="utf-8")
    section = page.partition("## Known bugs")[2]
    listed = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", section, re.MULTILINE))
    assert listed == {name: mutant.breaks for name, mutant in MUTANTS.items()}


def test_the_simulated_loop_reports_uncaught_errors_of_tasks() -> None:
    calls: list[object] = []
    unhandled: list[Exception] = []

    class Soon:
        def call_soon(self, callback: object) -> None:
            calls.append(callback)

    loop = SimEventLoop(Soon(), unhandled.append)

    async def fail() -> None:
        raise ValueError("found")

    task = loop.create_task(fail())
    while calls:
        calls.pop(0)()  # type: ignore[operator]
    assert task.done()
    del task
    assert [str(error) for error in unhandled] == ["found"]
