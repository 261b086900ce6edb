"""Trials of known bugs: whatever is said to convict one in real processes can be run."""

from dledger_chaos.faults import kinds_named
from dledger_chaos.mutants import registers
from dledger_chaos.mutants.trials import TRIALS
from dledger_chaos.run import workloads_named
from dledger_chaos.targets import MUTABLE, TARGETS
from dledger_sim.brokers.mutants import MUTANTS


def test_every_trial_names_a_known_bug_and_what_there_is():
    assert TRIALS.keys() <= MUTANTS.keys()
    for trial in TRIALS.values():
        assert trial.target in MUTABLE
        capabilities = TARGETS[trial.target].capabilities
        assert {kind.name for kind in kinds_named(trial.faults, capabilities)} == set(trial.faults)
        assert workloads_named(trial.workloads, capabilities) == list(trial.workloads)


def test_a_bug_that_nodes_of_registers_have_in_a_form_of_their_own_breaks_the_same_promise():
    assert {name: mutant.breaks for name, mutant in registers.CATALOGUE.items()} == {
        name: MUTANTS[name].breaks for name in registers.CATALOGUE
    }
