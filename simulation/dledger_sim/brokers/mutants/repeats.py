"""Bugs of idempotent sends."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from dledger.statemachine import Leadership
from dledger_broker.features.sending.dedup import comparing, idempotent
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import identity_of_batch
from dledger_broker.features.sending.dedup.remembered import RememberedSends
from dledger_broker.features.sending.dedup.rows import Row
from dledger_broker.features.sending.unit import PendingSend
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("repeats")

_began: WeakKeyDictionary[IdempotentSends, int] = WeakKeyDictionary()
"""End of the applied log at the moment at which a leader began to remember."""


def _remember_from_now_on(self: IdempotentSends, leadership: Leadership) -> None:
    _real_new_leadership(self, leadership)
    if leadership.ready:
        _began.setdefault(self, self._machine.applied_position)
    else:
        _began.pop(self, None)


def _is_stored_by_this_leader(
    self: IdempotentSends,
    rows: Sequence[Row],
    send: PendingSend,
) -> bool:
    own = [row for row in rows if row.position >= _began.get(self, 0)]
    return _real_is_stored(self, own, send)


_real_new_leadership = IdempotentSends.new_leadership
_real_is_stored = IdempotentSends._is_stored  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "sends-forgotten-at-failover",
    "a new leader knows the sends that earlier leaders stored",
    (IdempotentSends, "new_leadership", _remember_from_now_on),
    (IdempotentSends, "_is_stored", _is_stored_by_this_leader),
)


CATALOGUE.add(
    "repetition-in-flight-stored",
    "a repetition waits for the outcome of the first attempt",
    (IdempotentSends, "_in_flight", lambda _self: {}),
)

CATALOGUE.add(
    "repetition-not-compared",
    "a send is a repetition only if it equals the stored message",
    (comparing, "_same", lambda *_arguments: True),
    (idempotent, "rows_of_runs", lambda *_arguments: None),
    (idempotent, "identities_of", lambda keys, _seeds: [identity_of_batch(b"", len(key)) for key in keys]),
)


CATALOGUE.add(
    "first-of-a-row-compared",
    "a send that shares its row with other remembered sends is found",
    (comparing, "_records", lambda _stored, _count: (0,)),
)


def _index_as_many_as_last(self: RememberedSends, max_rows: int) -> bool:
    _ = max_rows
    _real_index(self, len(self))
    return True


_real_index = RememberedSends.index

CATALOGUE.add(
    "expired-sends-indexed-first",
    "a remembered send is found, however many sends have expired",
    (RememberedSends, "index", _index_as_many_as_last),
    scenario="forgets",
)


def _pass_time_twice_as_fast(self: RememberedSends, store_ms: int, position: int) -> None:
    _real_pass_time(self, 2 * store_ms, position)


_real_pass_time = RememberedSends._pass_time  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "sends-forgotten-early",
    "a send is remembered for the whole window",
    (RememberedSends, "_pass_time", _pass_time_twice_as_fast),
    scenario="forgets",
)
