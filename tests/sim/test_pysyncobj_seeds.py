"""Whole groups with the engine around PySyncObj keep their promises in a few seeds.

`make sim ENGINE=pysyncobj` runs more.
"""

import pytest

from dledger.engines.pysyncobj import library
from dledger.types import PYSYNCOBJ_ENGINE
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case

pytestmark = pytest.mark.long

LAB = "dledger_sim.brokers.lab"

SECONDS = 6.0
SEEDS = (
    *(("log", seed, SECONDS) for seed in range(500, 504)),
    *(("modes", seed, SECONDS) for seed in range(500, 503)),
    # A lone leader had committed more than a majority of the present voters had.
    ("modes", 27, SECONDS),
    ("threads", 500, SECONDS),
    # A log began behind an entry that was lost while its node was down. The judge did not know of the loss.
    ("threads", 4087, 20.0),
    # Votes were split for longer than a node holds a request. The judge took a failed send for a broken promise.
    ("aliases", 510070, 20.0),
    # A repeated send stored its message in another queue. The judge took that offset for the end of the first queue.
    ("aliases", 600223, 20.0),
    # A bit rotted above the durable mark before a power loss. No promise covers that, so it is no longer injected.
    ("broker", 600981, 20.0),
    # A consumer that pops decoded a rotten record.
    ("quotas", 600761, 20.0),
    # The judge sent beyond a quota of one message a second.
    ("accounts", 600936, 20.0),
    ("broker", 500, SECONDS),
    ("mixed", 500, SECONDS),
    # The leader's own command kinds were refused and never recorded, so features stayed inactive.
    ("mixed", 610060, 20.0),
    # An entry rotted on a full disk, the others trimmed it, and a start needed it. No node had the entry any more.
    ("halves", 611023, 20.0),
    # A query by key coincided with the installation of a snapshot.
    ("halves", 611716, 20.0),
    # A trim took entries while they were read back for a follower. The follower was never sent anything again.
    ("modes", 612497, 20.0),
    # A trim took a delivered message while a recall looked for it.
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
    """This shows that the seeds above run another engine than other tests."""
    made = []
    private_module = library.private_module
    monkeypatch.setattr(library, "private_module", lambda: made.append(1) or private_module())
    assert judge(Case("log", 500, 2.0, engine=PYSYNCOBJ_ENGINE), LAB).violation is None
    assert len(made) >= 3
