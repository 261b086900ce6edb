"""Bugs of the replicated state, and of the views derived from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ParamSpec

from dledger.errors import LogError
from dledger.statemachine import CommittedEntry, Leadership
from dledger_broker.features.pins.table import PinTable
from dledger_broker.features.retention.policy import TrimPart
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel import machine, view_recovery
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topic_proposals import TopicProposals
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.kernel.trims_under_way import TrimsUnderWay
from dledger_broker.views import unitfiles, unitreader
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.keyfile import ActiveIndexFile, Keys
from dledger_broker.views.keyindex import KeyIndex
from dledger_broker.views.queueview import QueueView
from dledger_sim.brokers.schedules import crossings, trims
from dledger_sim.brokers.schedules import requests as request_schedules
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")
P = ParamSpec("P")

# ---------------------------------------------------------------- the leader's overlay

CATALOGUE.add(
    "overlay-kept",
    "a new leader assigns queue offsets that follow from the applied state",
    (TopicTable, "reset_staged", lambda _self: None),
)


def _reset_whenever_not_ready(self: BrokerMachine, leadership: Leadership) -> None:
    if not leadership.ready:
        self.state.topic_table.reset_staged()
    _real_on_leadership(self, leadership)


_real_on_leadership = BrokerMachine.on_leadership

CATALOGUE.add(
    "overlay-reset-in-handover",
    "a failed handover takes back no queue offset that is in flight",
    (BrokerMachine, "on_leadership", _reset_whenever_not_ready),
    schedule=request_schedules.handover_that_fails,
)

# ---------------------------------------------------------------- commands that cross on their way


def _delete_only(self: TopicProposals, name: str, done: Done) -> None:
    events = self._changes._overlay.events  # noqa: SLF001 - patches private names
    prepare, events.prepare_deletion = events.prepare_deletion, ()
    try:
        _real_delete_topic(self, name, done)
    finally:
        events.prepare_deletion = prepare


_real_delete_topic = TopicProposals.delete_topic

CATALOGUE.add(
    "commit-behind-deletion",
    "no offset is committed for a topic behind its deletion",
    (TopicProposals, "delete_topic", _delete_only),
    schedule=crossings.commit_in_the_moment_of_a_deletion,
)

# ---------------------------------------------------------------- trims


def _trim_undecided(_self: Trimming, handle: JobHandle, position: int, _parts: Sequence[TrimPart] = ()) -> None:
    try:
        handle.trim(position)
    except LogError:
        pass


CATALOGUE.add(
    "trim-undecided",
    "first kept offsets are applied before the log is trimmed",
    (Trimming, "trim", _trim_undecided),
)


def _first_kept_too_far(
    self: ConsumeQueues, view: QueueView, start: int, position: int, read: Callable[[int, int], bytes]
) -> Callable[[], int]:
    search = _real_first_kept(self, view, start, position, read)
    return lambda: min(search() + 1, view.end)


_real_first_kept = ConsumeQueues.first_kept

CATALOGUE.add(
    "trim-takes-one-more",
    "a queue keeps every message that the log keeps",
    (ConsumeQueues, "first_kept", _first_kept_too_far),
)


class _Everlasting(JobHandle):
    """Handle of a job that ignores the end of its readiness."""

    def __init__(self, handle: JobHandle) -> None:
        vars(self).update(vars(handle))

    def guarded(self, callback: Callable[P, None]) -> Callable[P, None]:
        return callback


def _trim_whenever_found(self: Trimming, handle: JobHandle, position: int, parts: Sequence[TrimPart] = ()) -> None:
    _real_trim(self, _Everlasting(handle), position, parts)


_real_trim = Trimming.trim

CATALOGUE.add(
    "trim-across-terms",
    "a trim that was computed in an earlier term is not proposed",
    (Trimming, "trim", _trim_whenever_found),
    schedule=trims.trim_that_outlives_its_term,
)

CATALOGUE.add(
    "stopped-job-goes-on",
    "a job stages nothing after the end of its node's readiness, even if the node is ready again",
    (JobHandle, "stop", lambda _self: None),
    schedule=trims.trim_that_outlives_a_failed_handover,
)

CATALOGUE.add(
    "trim-busy-for-ever",
    "a search that a handover has ended holds up no other trim",
    (
        TrimsUnderWay,
        "position",
        property(lambda self: max((0 if self._search is None else self._search[1]), *self._proposed, 0)),
    ),
    schedule=trims.trim_that_outlives_a_failed_handover,
)

CATALOGUE.add(
    "pins-ignored",
    "the log behind a pin is kept while the pin's lease runs",
    (PinTable, "lowest", lambda _self, _now_ms: None),
    scenario="repeats",
)

CATALOGUE.add(
    "pin-below-a-trim",
    "no leader pins log that other nodes have trimmed, even if the leader still has it",
    (
        BrokerMachine,
        "kept_from",
        property(lambda self: max(self.log.first_position, self.trims_under_way.position)),
    ),
    schedule=crossings.pin_of_what_others_have_trimmed,
    scenario="repeats",
)

# ---------------------------------------------------------------- snapshots


def _encode_without_the_trim(state: BrokerState, now: float) -> Iterator[bytes]:
    trimmed_before, state.trims.before = state.trims.before, 0
    try:
        return _real_encode_state(state, now)
    finally:
        state.trims.before = trimmed_before


_real_encode_state = encode_state

CATALOGUE.add(
    "snapshot-forgets-the-trim",
    "a snapshot records the position up to which the log is trimmed",
    (machine, "encode_state", _encode_without_the_trim),
)


def _count_anew(chunks: Iterable[bytes], now: float, features: Sequence[Replicated]) -> BrokerState:
    state = _real_decode_state(chunks, now, features)
    state.topic_table.version = len(state.topics)
    return state


_real_decode_state = decode_state

CATALOGUE.add(
    "topic-version-counted-anew",
    "a restart keeps the count of topic changes, by which name servers recognise the newer state",
    (machine, "decode_state", _count_anew),
)


def _encode_late(state: BrokerState, now: float) -> Iterator[bytes]:
    yield from _real_encode_state(state, now)


CATALOGUE.add(
    "state-captured-late",
    "a snapshot holds the state at its entry, even if it is encoded later",
    (machine, "encode_state", _encode_late),
)

# ---------------------------------------------------------------- consume queues


def _rebuild_nothing(self: BrokerMachine, entries: Sequence[CommittedEntry]) -> None:
    _ = self, entries


CATALOGUE.add(
    "rebuild-forgotten",
    "the parts of the restored state that views lack are rebuilt from the log",
    (BrokerMachine, "rebuild", _rebuild_nothing),
    schedule=request_schedules.views_of_a_killed_node,
)


def _sync_nothing(self: ConsumeQueues, done: Callable[[str | None], None]) -> None:
    self._writer.submit(lambda: None, lambda _result: done(None))


CATALOGUE.add(
    "checkpoint-before-sync",
    "a checkpoint lists only durable data",
    (ConsumeQueues, "sync", _sync_nothing),
    (view_recovery, "_holds", lambda *_arguments: True),
    # A reader repairs units that do not verify. With its check the bug only costs time, without the check it costs
    # messages.
    (unitreader, "are_whole", lambda *_arguments: True),
    (unitfiles, "are_whole", lambda *_arguments: True),
)

# ---------------------------------------------------------------- key index


def _slots_first(self: ActiveIndexFile, keys: Keys) -> None:
    first = self.header.next_entry
    slots = {code % self._layout.slots: first + place for place, code in enumerate(keys["hash"].tolist())}
    try:
        _real_add(self, keys)
    except OSError:
        for slot, number in slots.items():
            self._slots[slot] = number
        raise


_real_add = ActiveIndexFile.add


CATALOGUE.add(
    "index-slots-before-entries",
    "a failed write of the key index loses no key",
    (ActiveIndexFile, "add", _slots_first),
    schedule=request_schedules.index_write_that_failed,
)

CATALOGUE.add(
    "failed-sync-tried-again",
    "data that a failed sync of the key index left out is written again",
    (KeyIndex, "_sync_entries", lambda _self, active: active.sync_entries()),
    schedule=request_schedules.index_sync_that_failed,
)
