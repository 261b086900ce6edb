"""Table of queue locks: what commands do to it, its digest, and its snapshot."""

from dledger_broker.features import FEATURES
from dledger_broker.features.locks.table import LOCKS, DeleteLocks, DeleteRow, LockKey, Owner, PutLocks, PutRow
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from tests.broker.kernel.applied_commands import apply

ANNA, BERT, OTHER_ANNA = Owner("", "anna"), Owner("", "bert"), Owner("account", "anna")
KEY = LockKey("CG", "T1", 0)


def put(owner: Owner, expected: Owner | None = None, queue_id: int = 0) -> PutLocks:
    return PutLocks("CG", owner, (PutRow("T1", queue_id, expected),))


def delete(owner: Owner) -> DeleteLocks:
    return DeleteLocks((DeleteRow(*KEY, owner),))


def state_after(*commands: PutLocks | DeleteLocks) -> BrokerState:
    state = BrokerState(FEATURES)
    apply(state, *commands)
    return state


def owner_after(*commands: PutLocks | DeleteLocks) -> Owner | None:
    return state_after(*commands).table(LOCKS).owner(KEY)


def test_a_lock_changes_hands_only_from_its_expected_owner_and_ends_only_for_its_owner() -> None:
    assert owner_after(put(ANNA)) == ANNA
    assert owner_after(put(ANNA, expected=BERT)) is None
    assert owner_after(put(ANNA), put(BERT)) == ANNA
    assert owner_after(put(ANNA), put(BERT, expected=ANNA)) == BERT
    assert owner_after(put(ANNA), put(BERT, expected=ANNA), put(ANNA, expected=ANNA)) == BERT
    assert owner_after(put(ANNA), delete(BERT)) == ANNA
    assert owner_after(put(ANNA), put(OTHER_ANNA), delete(OTHER_ANNA)) == ANNA


def test_an_ended_lock_leaves_nothing_behind() -> None:
    state = state_after(put(ANNA), delete(ANNA))
    assert dict(state.table(LOCKS)) == {}
    assert state.digest() == BrokerState(FEATURES).digest()


def test_a_snapshot_holds_all_locks() -> None:
    commands = [put(ANNA if number % 2 else BERT, queue_id=number) for number in range(1_200)]
    state = state_after(*commands)
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert dict(restored.table(LOCKS)) == dict(state.table(LOCKS))
    assert (restored.digest(), len(restored.table(LOCKS))) == (state.digest(), 1_200)


def test_the_digest_of_locks_does_not_depend_on_the_order_of_changes() -> None:
    one = state_after(put(ANNA), put(BERT, queue_id=1))
    other = state_after(put(BERT, queue_id=1), put(BERT), put(ANNA, expected=BERT))
    assert one.digest() == other.digest() != state_after(put(BERT), put(BERT, queue_id=1)).digest()
