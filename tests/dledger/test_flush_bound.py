"""With `flush = "async"` a leader limits the acknowledged bytes that the disks of a majority may lack."""

from types import SimpleNamespace
from typing import Any

import pytest

from dledger.replica.storing.flush_bound import FlushBound
from dledger.types import EntryMeta, Membership, ReplicaId
from tests.dledger.fake_driver import FakeDriver

A, B, C = (ReplicaId(name, name) for name in "abc")
ENTRY_BYTES = 1 << 20
BOUND_S, BOUND_BYTES = 0.1, 16 << 20
"""Promised bounds, which the product's constants must keep to."""


def chain(index: int) -> int:
    return index + 1000


class Store:
    durable = -1

    def held_meta(self, index: int) -> EntryMeta | None:
        if index < 0:
            return None
        return EntryMeta(index, 1, index * ENTRY_BYTES, ENTRY_BYTES, 1, 0, chain(index))


class Leader:
    """Bound of a leader whose term began with entry 0. `applied` is the highest acknowledged entry."""

    def __init__(self, *, sync: bool = False) -> None:
        self.clock = 0.0
        self.applied = -1
        self.store: Any = Store()
        self.sent: list[tuple[str, bytes]] = []
        self.engine: Any = SimpleNamespace(
            is_leader=True, leader=A, term_start=0, commit_index=0, membership=Membership((A, B, C)),
            progress={B: SimpleNamespace(match_index=-1), C: SimpleNamespace(match_index=-1)},
        )  # fmt: skip
        clock: Any = SimpleNamespace(now=lambda: self.clock)
        wire: Any = SimpleNamespace(send_data=lambda to, _, parts: self.sent.append((to, b"".join(parts))) or True)
        self.bound = FlushBound(A, clock, wire, self.store, self.engine, FakeDriver(), self._advance, sync=sync)
        self.commit(0)
        for peer in (B, C):
            self.told(peer, 0)
        self.store.durable = 0

    def _advance(self, index: int) -> None:
        self.applied = max(self.applied, index)

    def commit(self, index: int) -> int:
        self.engine.commit_index = index
        self._advance(self.bound.apply_limit(index))
        return self.applied

    def told(self, peer: ReplicaId, index: int, chain_crc: int | None = None) -> None:
        data = index.to_bytes(8, "big") + (chain(index) if chain_crc is None else chain_crc).to_bytes(4, "big")
        self.bound.on_data(peer, data)


def test_nothing_is_acknowledged_while_an_acknowledged_entry_is_old_and_on_no_majority() -> None:
    leader = Leader()
    assert leader.commit(1) == 1
    leader.clock = BOUND_S / 2
    assert leader.commit(2) == 2
    leader.clock = BOUND_S
    assert leader.commit(3) == 2
    leader.told(B, 1)
    assert leader.applied == 2, "one of three"
    leader.told(C, 1)
    assert leader.applied == 3
    leader.clock = 3 * BOUND_S
    assert leader.commit(4) == 3
    leader.store.durable = 3
    leader.bound.synced()
    assert leader.applied == 3, "two of three have 1 only"
    leader.told(B, 3)
    assert leader.applied == 4


def test_entries_that_had_to_be_read_first_wait_if_the_disks_have_fallen_behind_meanwhile() -> None:
    leader = Leader()
    assert leader.commit(1) == 1
    leader.clock = 0.9 * BOUND_S
    leader.engine.commit_index = 2
    assert leader.bound.apply_limit(2) == 2, "the leader reads entry 2"
    leader.clock = 1.1 * BOUND_S
    assert leader.bound.apply_limit(2) == -1, "it has read the entry"
    leader.bound.recheck()
    assert leader.applied == 1
    leader.store.durable = 1
    leader.told(B, 1)
    assert leader.applied == 2


def test_no_more_bytes_are_acknowledged_than_the_disks_may_lack() -> None:
    leader = Leader()
    leader.engine.term_start = 50
    assert leader.commit(50) == 50, "entries of earlier terms are no acknowledgements"
    leader = Leader()
    most = BOUND_BYTES // ENTRY_BYTES
    assert leader.commit(100) == most
    leader.told(B, 5)
    assert leader.applied == most
    leader.told(C, 3)
    assert leader.applied == most + 3


def test_a_large_entry_is_applied_once_all_earlier_entries_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger.replica.storing.flush_bound.BOUND_BYTES", ENTRY_BYTES // 2)
    leader = Leader()
    assert leader.commit(3) == 1
    for peer in (B, C):
        leader.told(peer, 1)
    assert leader.applied == 2


def test_reports_of_another_log_release_no_held_entry() -> None:
    leader = Leader()
    leader.commit(1)
    leader.clock = BOUND_S
    assert leader.commit(2) == 1
    for peer in (B, C):
        leader.told(peer, 2, chain_crc=7)
    assert leader.applied == 1
    leader.told(B, 2)
    leader.told(C, 2)
    assert leader.applied == 2


def test_a_member_without_entries_does_not_count_by_its_acknowledgements() -> None:
    leader = Leader()
    leader.bound._durable_indexes.clear()
    leader.engine.progress[B].match_index = leader.engine.progress[C].match_index = 5
    leader.store.durable = -1
    leader.bound.synced()
    follower = Leader()
    follower.engine.is_leader, follower.engine.leader = False, B
    follower.store.durable = -1
    follower.bound.synced()
    for peer in (B, C):
        leader.bound.on_data(peer, follower.sent[0][1])
    assert leader.commit(1) == 1
    leader.clock = BOUND_S
    assert leader.commit(2) == 1


def test_members_without_sync_reports_count_by_their_acknowledgements() -> None:
    leader = Leader()
    leader.bound._durable_indexes.clear()
    leader.engine.progress[B].match_index = leader.engine.progress[C].match_index = 5
    assert leader.commit(1) == 1
    leader.clock = BOUND_S
    assert leader.commit(2) == 2


def test_held_back_entries_are_applied_when_another_node_leads() -> None:
    leader = Leader()
    leader.commit(1)
    leader.clock = BOUND_S
    assert leader.commit(2) == 1
    leader.engine.is_leader = False
    leader.bound.role_changed()
    assert leader.applied == 2


def test_a_follower_tells_the_leader_after_each_sync_and_a_new_leader_at_once() -> None:
    follower = Leader()
    follower.engine.is_leader, follower.engine.leader = False, B
    follower.store.durable = 4
    follower.bound.synced()
    told = (4).to_bytes(8, "big") + chain(4).to_bytes(4, "big")
    assert follower.sent == [("b", told)]
    follower.bound.recheck()
    assert len(follower.sent) == 1
    follower.engine.leader = C
    follower.bound.recheck()
    assert follower.sent[1:] == [("c", told)]


def test_the_flush_bound_does_not_apply_with_synchronous_flush() -> None:
    leader = Leader(sync=True)
    leader.clock = BOUND_S
    assert leader.commit(1000) == 1000
    leader.bound.recheck()
    assert not leader.sent
