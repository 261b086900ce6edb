"""Whole groups run from seeds, one of each scenario. The long tests run seeds that once broke a promise, and more."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dledger_sim.brokers.schedules import SCHEDULES, brokers
from dledger_sim.brokers.trial import BrokerTrial
from dledger_sim.log.campaign import judge, judge_all
from dledger_sim.log.cases import Case
from dledger_sim.log.kinds import CLASSES, DRAWS, TRIM
from dledger_sim.log.run import Outcome

LAB = "dledger_sim.brokers.lab"
SECONDS = 10.0
SHORT_SECONDS = 5.0
FRESH = {
    "plain": range(500, 504), "forgets": range(500, 504), "aliases": range(500, 502), "broker-modes": range(500, 502),
    "log": range(500, 515), "modes": (*range(500, 519), 529), "threads": range(500, 506), "rot": range(500, 506),
    "sectors": range(500, 510), "hangs": range(500, 506), "broker": (*range(500, 526), 539),
    "broker-rot": (500, 502, 508), "repeats": range(500, 506), "races": range(500, 512), "halves": range(500, 507),
    "delays": range(500, 508), "locks": range(500, 507), "retries": range(500, 506), "mixed": range(500, 506),
    "pops": range(500, 512), "replies": range(500, 505), "assignments": range(500, 504), "resets": range(500, 508),
    "classes": range(500, 502), "quotas": range(500, 503), "accounts": range(500, 504), "crowds": range(500, 504),
    "views": range(500, 502), "client": range(500, 504), "leases": range(500, 503),
}  # fmt: skip

LOG_HAPPENINGS = ("disk error met", "snapshot sent", "log replaced", "entries truncated", "log trimmed", "conflict")
MODE_HAPPENINGS = (
    "committed entries lost",
    "loss accepted",
    "busy",
    "membership change asked for",
    "snapshot for nothing",
)
BROKER_HAPPENINGS = (
    "answer 14", "answer 17", "cold read", "commit", "commit refused", "found by key", "found by position",
    "forward refused", "group begins where it likes", "group begins with a young queue", "group change refused",
    "group deleted", "group read", "log pinned", "message of a passing topic denied",
    "message of a passing topic found", "no answer", "no offset read", "offset moved", "offset read",
    "outcome unknown", "poll held", "poll woken", "request expired", "request forwarded", "request held",
    "state from the log", "told what it committed", "told where the end is", "topic change refused", "topic deleted",
    "views caught up", "views deleted", "views rebuilt", "views trusted",
)  # fmt: skip
REPEAT_HAPPENINGS = (
    "send remembered", "sends remembered together", "send repeated", "repetition answered", "repetition held",
    "log planned", "log pinned", "record read by range",
)  # fmt: skip
RARE_KINDS = ("bit-flip", "client-cut", "long-pause", "lose-files", "lose-segment", "remove", "rolling-restart", "wipe")
RARE_SEEDS = range(600, 602)
"""Seeds that draw from few kinds of faults, so that each kind strikes often enough."""

RACE_HAPPENINGS = (
    "answered by a stopping node", "channel has all back", "commit came back", "commit of a pull passed on",
    "commit overtaken", "commit took a detour", "denial confirmed first", "denial of a confirmed leader",
    "doubt passed on to the leader", "forwarding not wanted", "handled where it had waited", "leader not confirmed",
    "overtaken commit answered", "pull to be repeated", "question without an answer",
)  # fmt: skip
RAREST = ("refused for its channel's epoch", "waited behind a refused one", "waited for what another node had")
"""Happenings that only a schedule by hand reaches."""
HAPPENINGS = {
    "plain": ("commit", "log trimmed"),
    "forgets": REPEAT_HAPPENINGS,
    "aliases": ("consumer sent to a follower", "log trimmed"),
    "broker-modes": ("message popped", "log trimmed"),
    "log": LOG_HAPPENINGS,
    "modes": (*LOG_HAPPENINGS, *MODE_HAPPENINGS),
    "threads": ("thread switched", "log trimmed"),
    "broker": (*LOG_HAPPENINGS, *BROKER_HAPPENINGS),
    "rot": ("flipped identity.json", "flipped raft/mark", "flipped snapshots", "log trimmed"),
    "sectors": ("unreadable commitlog", "log trimmed"),
    "hangs": ("log trimmed",),
    "broker-rot": ("flipped raft/mark", "message popped", "log trimmed"),
    "repeats": REPEAT_HAPPENINGS,
    "races": RACE_HAPPENINGS,
    "halves": (
        "half stored", "transaction committed", "transaction rolled back", "transaction given up", "producer asked",
        "transaction ended when asked", "log trimmed",
    ),
    "delays": (
        "delayed message delivered", "delayed send repeated", "message taken back", "row moved", "log trimmed",
    ),
    "locks": ("lock granted", "lock changed hands", "lock taken when a belief was over"),
    "retries": ("message sent back", "message sent back, or not", "message came again", "dead letter", "log trimmed"),
    "mixed": (
        "message came again", "transaction committed", "delayed message delivered", "lock granted", "message popped",
    ),
    "replies": ("reply arrived", "replier told that it was heard", "reply refused with 1", "log trimmed"),
    "pops": (
        "batch of popped messages acknowledged", "commit in a popped queue", "message popped",
        "popped message acknowledged", "popped message came again", "popped message dead",
        "popped message hidden anew", "popped message shown again", "log trimmed",
    ),
    "leases": (
        "delivery leased", "delivery leased when confirmed", "lease renewed", "lease ended by its client",
        "leased message came again", "message lost with its proxy",
    ),
    "assignments": ("mode set", "modes told", "queues assigned", "topic deleted", "group deleted"),
    "resets": ("group reset", "queue reset", "told of a reset", "reset seen", "late commit refused"),
    "quotas": (
        "quota set", "quotas told", "send held by a quota", "send refused by a quota", "read held by a quota",
        "read refused by a quota",
    ),
    "accounts": (
        "account changed", "account deleted", "accounts told", "quota set", "send refused to an account",
        "send held by a quota",
    ),
    "crowds": ("disk above the watermark", "disk filled by others", "log trimmed"),
    "views": ("rot in consumequeue", "rot in keyindex", "rot in timeindex", "log trimmed"),
    "client": (
        "commit of a member refused for now", "delivered again", "group moved", "member cut off", "member joined",
        "member killed", "member left", "member stopped", "delivered from a retry topic", "queue reset",
        "topic remade",
    ),
    "classes": ("judged by a class", "class filter died", "message popped", "popped message acknowledged"),
}  # fmt: skip
"""Happenings that a short campaign of a scenario reaches."""


def _remembered() -> list[Case]:
    """Return the cases of the corpus, each with the kinds of faults that existed when it failed."""
    kinds: tuple[str, ...] | None = ()
    usual = True
    cases: list[Case] = []
    for line in (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").splitlines():
        first, *rest = line.split()
        if first == "kinds":
            kinds = tuple(rest) or None
        elif first == "surroundings":
            usual = False
        elif first != "#":
            seed, seconds = rest
            cases.append(Case(first, int(seed), float(seconds), kinds=kinds, usual=usual))
    return cases


def _check(outcome: Outcome) -> None:
    assert outcome.violation is None, f"{outcome.case}: {outcome.violation}\n{outcome.place}"


@pytest.mark.parametrize("scenario", sorted(FRESH))
def test_a_seed_breaks_no_promise(scenario: str) -> None:
    _check(judge(Case(scenario, FRESH[scenario][0], SHORT_SECONDS), LAB))


@pytest.fixture(scope="module")
def outcomes() -> dict[Case, Outcome]:
    """Return the outcomes of all cases of this module, run on as many processes as there are processors."""
    fresh = [Case(scenario, seed, SECONDS) for scenario, seeds in FRESH.items() for seed in seeds]
    rare = [Case(scenario, seed, SECONDS, kinds=RARE_KINDS) for scenario in FRESH for seed in RARE_SEEDS]
    cases = [*_remembered(), *fresh, *rare]
    return dict(zip(cases, judge_all(cases, LAB, jobs=os.cpu_count() or 1), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("case", _remembered(), ids=lambda case: f"{case.scenario}-{case.seed}")
def test_seeds_that_once_failed_pass(case: Case, outcomes: dict[Case, Outcome]) -> None:
    _check(outcomes[case])


@pytest.fixture(scope="module", params=sorted(FRESH))
def campaign(request: pytest.FixtureRequest, outcomes: dict[Case, Outcome]) -> tuple[str, list[Outcome]]:
    """Return a short campaign of a scenario, with the scenario's cases of the corpus."""
    return request.param, [outcome for case, outcome in outcomes.items() if case.scenario == request.param]


@pytest.mark.long
def test_no_promise_is_broken_under_any_fault(campaign: tuple[str, list[Outcome]]) -> None:
    _, outcomes = campaign
    for outcome in outcomes:
        _check(outcome)


@pytest.mark.long
def test_every_kind_of_fault_strikes(outcomes: dict[Case, Outcome]) -> None:
    assert {kind for outcome in outcomes.values() for kind in outcome.injected} == {*DRAWS, TRIM}


@pytest.mark.long
def test_a_short_campaign_reaches_every_rare_branch(campaign: tuple[str, list[Outcome]]) -> None:
    scenario, outcomes = campaign
    happened: Counter[str] = Counter()
    for outcome in outcomes:
        happened.update(outcome.happened)
        happened.update(outcome.counts)
    for happening in HAPPENINGS[scenario]:
        assert happened[happening], happening
    assert happened["ok"] > 45 * len(outcomes)
    assert happened["read"] > 10 * len(outcomes)


@pytest.mark.long
def test_the_schedules_take_the_rarest_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[BrokerTrial] = []

    class Kept(BrokerTrial):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            trials.append(self)

    monkeypatch.setattr(brokers, "BrokerTrial", Kept)
    for schedule in SCHEDULES:
        schedule()
    happened = sum((trial.counts for trial in trials), Counter[str]())
    for happening in RAREST:
        assert happened[happening], happening


def test_every_kind_of_fault_has_a_class() -> None:
    assert CLASSES.keys() == {*DRAWS, TRIM}


@pytest.mark.long
@pytest.mark.parametrize("scenario", sorted(FRESH))
def test_a_seed_repeats_exactly(scenario: str) -> None:
    first: list[str] = []
    second: list[str] = []
    once = judge(Case(scenario, 7, 5.0), LAB, trace=first.append)
    again = judge(Case(scenario, 7, 5.0), LAB, trace=second.append)
    assert first == second
    assert (once.events, once.committed, once.counts) == (again.events, again.committed, again.counts)
