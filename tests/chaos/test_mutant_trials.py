"""Trials of known bugs: every check that is said to convict one in real processes can be run."""

from dledger_chaos.faults import kinds_named
from dledger_chaos.mutants import registers
from dledger_chaos.mutants.trials import TRIALS
from dledger_chaos.run import workloads_named
from dledger_chaos.targets import MUTABLE, TARGETS
from dledger_sim.brokers.mutants import MUTANTS


def test_every_trial_names_a_known_mutant_and_existing_faults_and_workloads():
    assert TRIALS.keys() <= MUTANTS.keys()
    for trial in TRIALS.values():
        assert trial.target in MUTABLE
        capabilities = TARGETS[trial.target].capabilities
        assert {kind.name for kind in kinds_named(trial.faults, capabilities)} == set(trial.faults)
        assert workloads_named(trial.workloads, capabilities) == list(trial.workloads)


def test_mutants_of_register_nodes_break_the_same_promise_as_those_of_brokers():
    assert {name: mutant.breaks for name, mutant in registers.CATALOGUE.items()} == {
        name: MUTANTS[name].breaks for name in registers.CATALOGUE
    }
