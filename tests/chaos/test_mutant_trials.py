"""What is said to convict a known bug in real processes can be run."""

from dledger_broker.sim.mutants import MUTANTS
from dledger_chaos.faults import kinds_named
from dledger_chaos.local import CAPABILITIES
from dledger_chaos.mutants.trials import TRIALS
from dledger_chaos.workloads.registry import WORKLOADS


def test_every_trial_names_a_known_bug_and_what_there_is():
    assert TRIALS.keys() <= MUTANTS.keys()
    for trial in TRIALS.values():
        assert {kind.name for kind in kinds_named(trial.faults, CAPABILITIES)} == set(trial.faults)
        assert set(trial.workloads) <= WORKLOADS.keys()
