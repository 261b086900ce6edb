"""Activation of features: once every voter understands them, never undone, and nothing of them before."""

import msgspec
import pytest

from dledger.errors import BusyError, CorruptionError
from dledger.invariants import InvariantError
from dledger.statemachine import CommittedEntry
from dledger.types import EntryKind, Membership, ReplicaId
from dledger_broker.features import COMMANDS, FEATURES
from dledger_broker.kernel.activation import ACTIVATE_FEATURES, ActivateFeatures
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState, registry_of
from dledger_broker.kernel.tables import Changes, Table, TableKey
from dledger_broker.kernel.trying_again import RETRY_S
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.errors import SystemBusy

OTHER = "fake-n1"


class Note(msgspec.Struct, frozen=True):
    """Note something."""


class Notes(Table):
    """How many there are."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def digest(self) -> int:
        """See `Table.digest`."""
        return self.count

    def apply(self, command, entry, changes):
        """See `Table.apply`."""
        _ = command, entry, changes
        self.count += 1


NOTES = TableKey("notes", Notes)
NOTING = Replicated(name="notes", commands={900: Note}, table=NOTES, activated=True)
WITH_NOTES = (*FEATURES, NOTING)
KINDS = registry_of(WITH_NOTES).kinds
LEARNER = ReplicaId("learner", "00000002")


def group_of_two(*learners: ReplicaId) -> BrokerInMemory:
    """A leader with notes, and another voter that has told nothing yet."""
    broker = BrokerInMemory(features=WITH_NOTES, lead=False)
    voters = (ReplicaId(NODE_ID, "00000000"), ReplicaId(OTHER, "00000001"))
    broker.node.membership = Membership(voters, learners)
    broker.node.lead()
    broker.env.run_ready()
    return broker


def tell(broker: BrokerInMemory, node_id: str, kinds: tuple[int, ...]) -> None:
    """Have a member tell what it understands."""
    broker.machine.learn_kinds(node_id, kinds)
    broker.env.run_ready()


def test_a_feature_is_active_once_every_voter_understands_it_and_not_before() -> None:
    broker = group_of_two(LEARNER)
    machine = broker.machine
    with pytest.raises(SystemBusy, match=f"'notes' is not active .*{OTHER}; upgrade"):
        machine.activation.require("notes")
    tell(broker, OTHER, COMMANDS.kinds)
    broker.env.advance(10 * RETRY_S)
    assert not machine.is_active("notes")
    tell(broker, OTHER, KINDS)
    assert machine.is_active("notes")
    machine.activation.require("notes")
    assert machine.state.activation.since["notes"] == broker.log.end


def test_a_voter_that_does_not_know_activations_is_waited_for() -> None:
    broker = group_of_two()
    tell(broker, OTHER, tuple(kind for kind in KINDS if kind != ACTIVATE_FEATURES))
    assert not broker.machine.is_active("notes")


def test_a_voter_that_leaves_the_group_is_waited_for_no_more() -> None:
    broker = group_of_two()
    broker.node.membership = Membership((ReplicaId(NODE_ID, "00000000"),))
    broker.env.advance(RETRY_S)
    assert broker.machine.is_active("notes")


def test_an_activation_that_is_refused_is_tried_again_and_recorded_once() -> None:
    broker = group_of_two()
    broker.machine.state.members.put(OTHER, KINDS)
    broker.node.stage_error = BusyError("too much is under way")
    broker.env.advance(2 * RETRY_S)
    assert not broker.machine.is_active("notes")
    broker.node.stage_error = None
    broker.env.advance(RETRY_S)
    assert broker.machine.is_active("notes")
    end = broker.log.end
    broker.env.advance(3 * RETRY_S)
    assert broker.log.end == end


def test_a_leader_that_finds_all_voters_upgraded_activates() -> None:
    broker = group_of_two()
    broker.node.step_down()
    told = registry_of(WITH_NOTES).encode(Features(OTHER, KINDS))
    broker.log.append(EntryKind.GROUP, broker.node.term + 1, b"", told)
    broker.node.catch_up()
    assert not broker.machine.is_active("notes")
    broker.node.lead()
    broker.env.run_ready()
    assert broker.machine.is_active("notes")


def test_what_is_active_stays_so_when_a_member_is_older_again() -> None:
    broker = group_of_two()
    tell(broker, OTHER, KINDS)
    tell(broker, OTHER, COMMANDS.kinds)
    broker.machine.stage_command(Note(), lambda _: None)
    broker.env.run_ready()
    assert broker.machine.state.table(NOTES).count == 1


def test_commands_of_a_feature_that_is_not_active_are_not_proposed() -> None:
    broker = group_of_two()
    broker.machine.state.members.put(OTHER, KINDS)  # all understand it, and nobody has recorded that it is used
    with pytest.raises(InvariantError, match="follow its activation"):
        broker.machine.stage_command(Note(), lambda _: None)
    with pytest.raises(InvariantError, match="follow its activation"):
        broker.writer.write([], [Note()], done=lambda _: None)


def test_a_feature_without_commands_cannot_wait_for_who_understands_them() -> None:
    with pytest.raises(InvariantError, match="has commands"):
        BrokerState((*FEATURES, Replicated(name="idle", activated=True)))


def activated() -> BrokerState:
    """A state in which notes are active, from position 148 on."""
    state = BrokerState(WITH_NOTES)
    apply_at(state, 100, ActivateFeatures(("notes",)))
    return state


def apply_at(state: BrokerState, end: int, command: ActivateFeatures) -> None:
    """Apply an entry of that command that ends at `end` and the size of its header."""
    section = COMMANDS.encode(command)
    entry = CommittedEntry(0, 1, end - len(section), b"", section)
    state.apply(entry, Changes(state.tables), registry_of(WITH_NOTES))


def test_the_first_activation_counts_and_is_in_digest_and_snapshot() -> None:
    state = activated()
    digest = state.digest()
    assert digest != BrokerState(WITH_NOTES).digest()
    apply_at(state, 900, ActivateFeatures(("notes",)))
    assert state.digest() == digest
    restored = decode_state(encode_state(state, 0.0), 0.0, WITH_NOTES)
    assert restored.activation.since == state.activation.since == {"notes": 148}
    assert restored.digest() == digest


def test_a_state_without_active_features_can_be_read_by_who_knows_none() -> None:
    stream = b"".join(encode_state(BrokerState(WITH_NOTES), 0.0))
    assert b"activated" not in stream
    assert decode_state([stream], 0.0, FEATURES).digest() == 0


def test_a_node_that_lacks_an_active_feature_stops_and_says_what_to_do() -> None:
    older = BrokerInMemory(lead=False)
    section = COMMANDS.encode(ActivateFeatures(("notes",)))
    older.log.append(EntryKind.GROUP, 1, b"", section)
    with pytest.raises(CorruptionError, match=r"uses the feature 'notes' since position .*upgrade this node"):
        older.node.catch_up()


def test_a_snapshot_with_an_active_feature_is_refused_by_a_node_that_lacks_it() -> None:
    with pytest.raises(CorruptionError, match=r"uses the feature 'notes' since position 148 .*upgrade this node"):
        decode_state(encode_state(activated(), 0.0), 0.0, FEATURES)
