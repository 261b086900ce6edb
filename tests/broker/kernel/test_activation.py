"""Activation of features: a feature is written only once every voter understands it, and stays active."""

import msgspec
import pytest

from dledger.errors import BusyError, CorruptionError
from dledger.statemachine import CommittedEntry
from dledger.types import EntryKind, Membership, ReplicaId
from dledger_base.group_identity import GroupIdentity
from dledger_base.invariants import InvariantError
from dledger_broker.features import COMMANDS, FEATURES
from dledger_broker.features.group_identity.adoption import Adoption
from dledger_broker.features.group_identity.table import GROUP_IDENTITY, SetGroupIdentity
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
    """Command that notes something."""


class Notes(Table):
    """Table that counts notes."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def digest(self) -> int:
        return self.count

    def apply(self, command, entry, changes):
        _ = command, entry, changes
        self.count += 1


NOTES = TableKey("notes", Notes)
NOTING = Replicated(name="notes", commands={900: Note}, table=NOTES, activated=True)
WITH_NOTES = (*FEATURES, NOTING)
KINDS = registry_of(WITH_NOTES).kinds


@pytest.fixture
def broker() -> BrokerInMemory:
    """Return a leader with notes. Another voter, and a learner, have told nothing yet."""
    broker = BrokerInMemory(features=WITH_NOTES, lead=False)
    voters = (ReplicaId(NODE_ID, "00000000"), ReplicaId(OTHER, "00000001"))
    broker.node.membership = Membership(voters, (ReplicaId("learner", "00000002"),))
    broker.node.lead()
    broker.env.run_ready()
    return broker


def tell(broker: BrokerInMemory, node_id: str, kinds: tuple[int, ...]) -> None:
    """Have a member tell the command kinds that it understands."""
    broker.machine.learn_kinds(node_id, kinds)
    broker.env.run_ready()


def test_a_feature_is_active_only_once_every_voter_understands_the_feature(broker: BrokerInMemory) -> None:
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


def test_a_group_gets_an_identity_once_every_voter_supports_this_and_follows_rescues(broker: BrokerInMemory) -> None:
    broker.machine.events.add(Adoption(broker.machine, broker.env))
    tell(broker, OTHER, ())
    assert broker.node.group_identity == ""
    tell(broker, OTHER, KINDS)
    first = broker.node.group_identity
    assert first == broker.machine.state.table(GROUP_IDENTITY).identity == str(GroupIdentity.founded_by("0" * 8))
    for identity, expected in (("9f" * 16, first), (later := f"{first}.2", later), (first, later)):
        broker.machine.stage_command(SetGroupIdentity(identity), lambda _: None)
        broker.env.run_ready()
        assert broker.node.group_identity == expected


def test_activation_waits_for_a_voter_that_does_not_know_activations_until_it_leaves(broker: BrokerInMemory) -> None:
    tell(broker, OTHER, tuple(kind for kind in KINDS if kind != ACTIVATE_FEATURES))
    assert not broker.machine.is_active("notes")
    broker.node.membership = Membership((ReplicaId(NODE_ID, "00000000"),))
    broker.env.advance(RETRY_S)
    assert broker.machine.is_active("notes")


def test_an_activation_that_is_refused_is_tried_again_and_recorded_once(broker: BrokerInMemory) -> None:
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


def test_a_leader_that_finds_all_voters_upgraded_activates(broker: BrokerInMemory) -> None:
    broker.node.step_down()
    told = registry_of(WITH_NOTES).encode(Features(OTHER, KINDS))
    broker.log.append(EntryKind.GROUP, broker.node.term + 1, b"", told)
    broker.node.catch_up()
    assert not broker.machine.is_active("notes")
    broker.node.lead()
    broker.env.run_ready()
    assert broker.machine.is_active("notes")


def test_an_active_feature_stays_active_when_a_member_is_downgraded(broker: BrokerInMemory) -> None:
    tell(broker, OTHER, KINDS)
    tell(broker, OTHER, COMMANDS.kinds)
    broker.machine.stage_command(Note(), lambda _: None)
    broker.env.run_ready()
    assert broker.machine.state.table(NOTES).count == 1


def test_commands_of_a_feature_that_is_not_active_are_not_proposed(broker: BrokerInMemory) -> None:
    broker.machine.state.members.put(OTHER, KINDS)  # all members understand it, but its activation is not recorded
    with pytest.raises(InvariantError, match="follow its activation"):
        broker.machine.stage_command(Note(), lambda _: None)
    with pytest.raises(InvariantError, match="follow its activation"):
        broker.writer.write([], [Note()], done=lambda _: None)
    with pytest.raises(InvariantError, match="has commands"):
        BrokerState((*FEATURES, Replicated(name="idle", activated=True)))


def activated() -> BrokerState:
    """Return a state in which notes are active from position 148 on."""
    state = BrokerState(WITH_NOTES)
    apply_at(state, 100, ActivateFeatures(("notes",)))
    return state


def apply_at(state: BrokerState, end: int, command: ActivateFeatures) -> None:
    """Apply an entry of this command that ends at `end` plus the size of its header."""
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
    without = b"".join(encode_state(BrokerState(WITH_NOTES), 0.0))
    assert b"activated" not in without
    assert decode_state([without], 0.0, FEATURES).digest() == 0, "older nodes can read it"


def test_a_node_that_lacks_an_active_feature_stops_with_instructions_also_at_a_snapshot() -> None:
    older = BrokerInMemory(lead=False)
    older.log.append(EntryKind.GROUP, 1, b"", COMMANDS.encode(ActivateFeatures(("notes",))))
    with pytest.raises(CorruptionError, match=r"uses the feature 'notes' since position .*upgrade this node"):
        older.node.catch_up()
    with pytest.raises(CorruptionError, match=r"uses the feature 'notes' since position 148 .*upgrade this node"):
        decode_state(encode_state(activated(), 0.0), 0.0, FEATURES)
