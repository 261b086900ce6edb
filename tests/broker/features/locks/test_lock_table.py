"""The table of queue locks: what commands do to it, its digest, its snapshot."""

from __future__ import annotations

from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import DeleteGroup
from dledger_broker.features.locks.table import (
    LOCKS,
    DeleteLocks,
    DeleteRow,
    LockKey,
    LockTable,
    Owner,
    PutLocks,
    PutRow,
)
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.topics import TopicConfig
from tests.broker.kernel.applied_commands import apply

ANNA, BERT = Owner("", "anna"), Owner("", "bert")
KEY = LockKey("CG", "T1", 0)


def put(owner: Owner, expected: Owner | None = None, queue_id: int = 0) -> PutLocks:
    return PutLocks("CG", owner, (PutRow("T1", queue_id, expected),))


def delete(owner: Owner) -> DeleteLocks:
    return DeleteLocks((DeleteRow(*KEY, owner),))


def state_after(*commands: PutLocks | DeleteLocks) -> tuple[BrokerState, LockTable]:
    state = BrokerState(FEATURES)
    apply(state, *commands)
    return state, state.table(LOCKS)


def test_a_lock_changes_hands_only_if_who_is_expected_owns_it() -> None:
    assert state_after(put(ANNA))[1].owner(KEY) == ANNA
    assert state_after(put(ANNA, expected=BERT))[1].owner(KEY) is None
    assert state_after(put(ANNA), put(BERT))[1].owner(KEY) == ANNA
    assert state_after(put(ANNA), put(BERT, expected=ANNA))[1].owner(KEY) == BERT
    assert state_after(put(ANNA), put(BERT, expected=ANNA), put(ANNA, expected=ANNA))[1].owner(KEY) == BERT


def test_a_lock_ends_only_for_its_owner() -> None:
    assert state_after(put(ANNA), delete(BERT))[1].owner(KEY) == ANNA
    state, table = state_after(put(ANNA), delete(ANNA))
    assert (table.owner(KEY), len(table)) == (None, 0)
    assert state.digest() == BrokerState(FEATURES).digest()


def test_clients_of_two_accounts_are_two_even_with_one_id() -> None:
    other = Owner("account", "anna")
    assert state_after(put(ANNA), put(other), delete(other))[1].owner(KEY) == ANNA


def test_a_lock_outlives_its_topic_and_its_group() -> None:
    state = BrokerState(FEATURES)
    apply(state, PutTopic(TopicConfig("T1", 4, 4), 1), put(ANNA))
    apply(state, DeleteTopic("T1"), DeleteGroup("CG", clean_offsets=True))
    assert state.table(LOCKS).owner(KEY) == ANNA


def test_a_snapshot_holds_all_locks() -> None:
    commands = [put(ANNA if number % 2 else BERT, queue_id=number) for number in range(1_200)]
    state, table = state_after(*commands)
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert dict(restored.table(LOCKS)) == dict(table)
    assert (restored.digest(), len(restored.table(LOCKS))) == (state.digest(), 1_200)


def test_a_table_without_locks_writes_no_frame_so_that_older_nodes_read_the_snapshot() -> None:
    assert state_after(put(ANNA), delete(ANNA))[1].capture_frames(0.0) == {}
    assert state_after(put(ANNA))[1].capture_frames(0.0).keys() == {"locks"}


def test_equal_locks_have_equal_digests_in_whatever_order_they_were_made() -> None:
    one = state_after(put(ANNA), put(BERT, queue_id=1))[0]
    other = state_after(put(BERT, queue_id=1), put(BERT), put(ANNA, expected=BERT))[0]
    assert one.digest() == other.digest() != state_after(put(BERT), put(BERT, queue_id=1))[0].digest()
