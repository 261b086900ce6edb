"""Whole groups whose engine is the one around PySyncObj, from a few seeds; `make sim ENGINE=pysyncobj` runs more."""

import pytest

from dledger.engines.pysyncobj import library
from dledger.types import PYSYNCOBJ_ENGINE
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case

LAB = "dledger_sim.brokers.lab"

SECONDS = 6.0
SEEDS = (
    *(("log", seed, SECONDS) for seed in range(500, 504)),
    *(("modes", seed, SECONDS) for seed in range(500, 503)),
    # Who had been alone had committed more than a majority of those who vote now.
    ("modes", 27, SECONDS),
    ("threads", 500, SECONDS),
    # A log began behind an entry that was lost while its node was down: the judge did not know that it had been.
    ("threads", 4087, 20.0),
    # Votes were split for longer than a node holds a request: the judge took a send that failed for a broken promise.
    ("aliases", 510070, 20.0),
    # Sent twice, a message was stored in another queue since: the judge took its offset there for the end of the first.
    ("aliases", 600223, 20.0),
    # A bit rotted above the durable mark, and then power was lost: that is not promised, and is not injected any more.
    ("broker", 600981, 20.0),
    # A consumer that pops decoded a record that had rotted.
    ("quotas", 600761, 20.0),
    # The judge sent beyond a quota of one message a second.
    ("accounts", 600936, 20.0),
    ("broker", 500, SECONDS),
    ("mixed", 500, SECONDS),
    # What a leader understands was refused, and never recorded: features stayed inactive.
    ("mixed", 610060, 20.0),
    # An entry rotted on a full disk, the others trimmed it, and a start needed it: nobody had it any more.
    ("halves", 611023, 20.0),
    # A query by key met the installation of a snapshot.
    ("halves", 611716, 20.0),
    # A trim took entries while they were read back for a follower, who was never sent anything again.
    ("modes", 612497, 20.0),
    # A trim took a delivered message while it was looked for, to be taken back.
    ("mixed", 611740, 20.0),
)


@pytest.mark.parametrize(("scenario", "seed", "seconds"), SEEDS)
def test_no_promise_is_broken(scenario: str, seed: int, seconds: float) -> None:
    outcome = judge(Case(scenario, seed, seconds, engine=PYSYNCOBJ_ENGINE), LAB)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.place}"
    assert outcome.committed > 0
    assert outcome.terms > 0


def test_a_case_that_names_no_engine_is_one_of_the_native_engine() -> None:
    assert Case("log", 1).engine == "native"


def test_every_start_of_a_node_makes_a_syncobj(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds above run another engine than the others do."""
    made = []
    private_module = library.private_module
    monkeypatch.setattr(library, "private_module", lambda: made.append(1) or private_module())
    assert judge(Case("log", 500, 2.0, engine=PYSYNCOBJ_ENGINE), LAB).violation is None
    assert len(made) >= 3
