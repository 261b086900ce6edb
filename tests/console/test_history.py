"""The console remembers rates and leaderships, and says what it saw of the leader before."""

from __future__ import annotations

import msgspec
import pytest

from dledger_admin.health.reports import NameServerAnswer, NodeAnswer, NodeReport, Survey
from dledger_console import history, rendering
from dledger_console.history import SAMPLE_SECONDS, History, Rates
from dledger_remoting.route import BrokerData

NODES = ("n0", "n1", "n2")
ADDRESSES = {node: f"127.0.0.1:{number}" for number, node in enumerate(NODES, 1)}


def survey(leader: str | None, term: int, rate: float = 0.0, **others: NodeAnswer | str) -> Survey:
    """Return a survey of a group of three, in which `others` stand for the answers of some nodes."""
    nodes: dict[str, NodeAnswer | str] = {}
    for node in NODES:
        report = NodeReport(
            node_id=node,
            group="broker-a",
            role="leader" if node == leader else "follower",
            term=term,
            commit_index=1,
            applied_index=1,
            first_position=0,
            last_position=1,
            durable_position=1,
            ready=True,
            voters=list(NODES),
        )
        answer = NodeAnswer(report=report, addresses=ADDRESSES, stored_per_s=rate, delivered_per_s=2 * rate)
        nodes[ADDRESSES[node]] = others.get(node, answer)
    data = BrokerData("c", "broker-a", dict(enumerate(ADDRESSES.values())))
    return Survey([NameServerAnswer(address="127.0.0.1:9", groups={"broker-a": data})], nodes)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> History:
    return History(clock, lambda: int(clock.now * 1000))


def told(kept: History) -> list[tuple[str | None, int | None, str]]:
    return [(one.leader, one.term, one.reason) for one in kept.leaderships("broker-a")]


def test_each_change_of_leader_is_kept_with_what_was_seen_of_the_one_before(kept: History) -> None:
    gone = "does not answer: cannot connect to 127.0.0.1:1: refused"
    kept.note(survey("n0", 1))
    kept.note(survey("n0", 1))
    kept.note(survey(None, 1, n0=gone))
    kept.note(survey("n1", 2, n0=gone))
    kept.note(survey("n2", 3))
    kept.note(survey("n2", 4))
    assert told(kept) == [
        ("n2", 4, "n2 was elected again in a later term"),
        ("n2", 3, "n1 answers and does not lead any more: it handed over, or a majority did not hear from it"),
        ("n1", 2, "an election has ended"),
        (None, None, f"n0 {gone}"),
        ("n0", 1, "when the console first looked"),
    ]


def test_a_leader_that_drains_handed_over(kept: History) -> None:
    kept.note(survey("n0", 1))
    draining = survey("n0", 1).nodes[ADDRESSES["n0"]]
    assert isinstance(draining, NodeAnswer)
    report = msgspec.structs.replace(draining.report, role="follower")
    kept.note(survey("n1", 2, n0=msgspec.structs.replace(draining, is_draining=True, report=report)))
    assert told(kept)[0] == ("n1", 2, "n0 drains: it handed over and stops")


def test_what_an_account_may_not_see_is_no_change(kept: History) -> None:
    kept.note(survey("n0", 1))
    kept.note(survey("n1", 2, n0="refuses to tell: NO_PERMISSION (16): User:x has no permission to access"))
    assert [leader for leader, _, _ in told(kept)] == ["n0"]


def test_rates_are_sampled_at_intervals_and_bounded(
    kept: History, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rate in (1.0, 5.0, 2.0):
        kept.note(survey("n0", 1, rate))
        kept.note(survey("n0", 1, 99.0))  # within the interval
        clock.now += SAMPLE_SECONDS
    assert kept.rates("broker-a") == Rates([3.0, 15.0, 6.0], [6.0, 30.0, 12.0])
    assert kept.total_rates() == kept.rates("broker-a")
    assert kept.rates("broker-b") == Rates()
    for _ in range(history.MAX_SAMPLES):
        kept.note(survey("n0", 1, 1.0))
        clock.now += SAMPLE_SECONDS
    assert kept.rates("broker-a").stored == [3.0] * history.MAX_SAMPLES


def test_the_number_of_groups_is_bounded(kept: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_GROUPS", 0)
    kept.note(survey("n0", 1))
    assert told(kept) == []


def test_a_line_of_rates_says_in_words_what_it_shows() -> None:
    assert rendering.sparkline([1.0], "Stored", 5.0) == ""
    line = rendering.sparkline([0.0, 4.0, 2.0], "Stored", 5.0)
    assert 'aria-label="Stored over the last 15s: at most 4.0 per second"' in line
    assert 'points="0.0,39.0 120.0,1.0 240.0,20.0"' in line
