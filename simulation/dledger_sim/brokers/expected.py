"""Replicated state that must follow from the entries of the log, computed independently of the code under test.

`truth` reads the log and reports here the changes of its commands. Every replica's tables must then be equal. Earlier
values are kept too, so that answers can be judged that were right a moment ago.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container
from typing import Final, NamedTuple, TypeAlias

from dledger_broker.features.accounts.table import DeleteAccount, PutAccount
from dledger_broker.features.assignments.table import REQUEST_MODES, Mode, ModeKey
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.pins.table import PINS, Pin
from dledger_broker.features.quotas.table import QUOTAS, PutQuota, QuotaOwner
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from dledger_sim.brokers.account_truth import AccountTruth, accounts_of, change_of
from dledger_sim.brokers.history import History
from dledger_sim.log.invariants import require

REMEMBERED_S: Final = 0.8 * LATE_COMMIT_S
"""Minimum time for which committers are remembered, in seconds, by clocks that may drift."""
OffsetKey: TypeAlias = tuple[str, str, int]
"""Consumer group, topic, queue id."""
Change: TypeAlias = tuple[object, ...]
"""Change that a client requested, in the form in which its entry names it."""


class Stored(NamedTuple):
    """Message in the log."""

    operation: int
    topic: str
    created: int
    queue_id: int
    offset: int
    position: int
    size: int
    tag_code: int
    at_ms: int
    """Highest store time in the log at that entry, in milliseconds."""
    entry_index: int = -1
    moment: float = 0.0
    """Simulated time at which its entry was first applied, in seconds."""


class Claim(NamedTuple):
    """Pin that its reader may rely on. The log is kept from `position` on until `until`, in simulated seconds."""

    position: int
    until: float


class Incarnation:
    """Topic from its creation to its deletion."""

    __slots__ = ("config", "created", "first_offsets", "name", "queues")

    def __init__(self, name: str, created: int) -> None:
        self.name = name
        self.created = created
        self.config = TopicConfig(name)
        self.queues: dict[int, list[Stored]] = {}
        self.first_offsets: dict[int, int] = {}

    def kept(self, queue_id: int) -> list[Stored]:
        """Return the messages of a queue for which no trim has been announced."""
        return self.queues.get(queue_id, [])[self.first_offsets.get(queue_id, 0) :]

    def end_after(self, queue_id: int, index: int) -> int:
        """Return the end of a queue after the entry at `index` was applied."""
        return bisect_right(self.queues.get(queue_id, []), index, key=lambda stored: stored.entry_index)

    def end_before(self, queue_id: int, moment: float) -> int:
        """Return the end of a queue in the whole group just before a moment."""
        return bisect_left(self.queues.get(queue_id, []), moment, key=lambda stored: stored.moment)

    def skipped(self, queue_id: int, start: int, end: int, codes: frozenset[int] | None = None) -> Stored | None:
        """Return the first kept message between two offsets that a filter lets through, or None."""
        start = max(start, self.first_offsets.get(queue_id, 0))
        wanted = (
            stored for stored in self.queues.get(queue_id, [])[start:end] if codes is None or stored.tag_code in codes
        )
        return next(wanted, None)


class _Commit(NamedTuple):
    """Commit of an offset in the log, with its recorded committer."""

    offset: int
    by: Committer | None
    moment: float
    """Simulated time at which its entry was first applied, in seconds."""


class Expected:
    """Tables of the state, with the history of their values."""

    def __init__(self) -> None:
        self.incarnations: Final[dict[tuple[str, int], Incarnation]] = {}
        """All incarnations that ever existed, by name and position of the creation."""
        self.topics: Final[defaultdict[str, History[Incarnation | None]]] = defaultdict(lambda: History(None))
        self.configs: Final[defaultdict[str, History[TopicConfig | None]]] = defaultdict(lambda: History(None))
        self.groups: Final[defaultdict[str, History[SubscriptionGroupConfig | None]]] = defaultdict(
            lambda: History(None)
        )
        self.modes: Final[defaultdict[ModeKey, History[Mode | None]]] = defaultdict(lambda: History(None))
        self.quotas: Final[defaultdict[QuotaOwner, History[PutQuota | None]]] = defaultdict(lambda: History(None))
        self.offsets: Final[defaultdict[OffsetKey, History[int | None]]] = defaultdict(lambda: History(None))
        self.committers: Final[defaultdict[OffsetKey, History[_Commit | None]]] = defaultdict(lambda: History(None))
        self.trims: Final[History[int]] = History(0)
        """Positions below which the log need not be kept."""
        self.topic_versions: Final[History[int]] = History(0)
        """Number of changes of topics."""
        self.accounts: Final = AccountTruth()
        self.pins: dict[str, Pin] = {}
        self.features: dict[str, tuple[int, ...]] = {}
        self._attempts: Counter[Change] = Counter()
        self._refused: set[Change] = set()
        self._logged_changes: set[Change] = set()

    def put_pin(self, pin: Pin) -> None:
        """Add a pin. The lower of two positions counts, and the later of two renewals."""
        before = self.pins.get(pin.name, pin)
        self.pins[pin.name] = Pin(
            pin.name, min(before.position, pin.position), pin.lease_ms, max(before.renewed_ms, pin.renewed_ms)
        )

    def end_modes(self, index: int, moment: float, *, topic: str = "", group: str = "") -> None:
        """End the modes of a topic or a group that is gone."""
        for key, history in self.modes.items():
            if history.last is not None and (key.topic == topic or key.group == group):
                history.put(index, moment, None)

    def see_setting(self, command: PutQuota | PutAccount | DeleteAccount, index: int, moment: float) -> None:
        """Note that a quota or an account is set or removed."""
        if isinstance(command, PutQuota):
            self.see(("quota", command))
            kept = command if command.messages or command.size else None
            self.quotas[QuotaOwner(command.kind, command.name)].put(index, moment, kept)
        else:
            self.see(change_of(command))
            self.accounts.see(command, index, moment)

    def see_committers(self, command: CommitOffsets, index: int, moment: float, void: Container[OffsetKey]) -> None:
        """Note committers, which every replica must remember for a while.

        Commits in `void` have no effect and are left out.
        """
        by = command.by or (-1,) * len(command.offsets)
        for (group, topic, queue_id, offset), number in zip(command.offsets, by, strict=True):
            if (group, topic, queue_id) in void:
                continue
            committer = command.committers[number] if number >= 0 else None
            self.committers[group, topic, queue_id].put(index, moment, _Commit(offset, committer, moment))

    # ---------------------------------------------------------------- refused changes

    def attempt(self, change: Change) -> None:
        """Note that a client requests a change, perhaps again."""
        self._attempts[change] += 1
        self._refused.discard(change)

    def refuse(self, change: Change) -> None:
        """Note that a client got a failure.

        The outcome is unknown if the change was requested more than once.
        """
        if self._attempts[change] == 1:
            require(change not in self._logged_changes, "a refused change is never made", change=change)
            self._refused.add(change)

    def see(self, change: Change) -> None:
        """Note that a change is in the log."""
        require(change not in self._refused, "a refused change is never made", change=change)
        self._logged_changes.add(change)

    # ---------------------------------------------------------------- replicas

    def compare(self, node: str, index: int, state: BrokerState) -> None:
        """Compare a replica's tables after it has applied the newest entry, at `index`."""
        topics = {name: value for name, history in self.topics.items() if (value := history.last) is not None}
        self._require_same(node, index, "topics", topics.keys(), state.topics.keys())
        for name, topic in state.topics.items():
            _compare_topic(node, index, topics[name], topic)
        groups = {name: config for name, history in self.groups.items() if (config := history.last) is not None}
        self._require_same(node, index, "groups", groups, state.table(GROUPS).by_name)
        offsets = {key: offset for key, history in self.offsets.items() if (offset := history.last) is not None}
        self._require_same(node, index, "offsets", offsets, _offsets_of(state))
        self._require_same(node, index, "pins", self.pins, {pin.name: pin for pin in state.table(PINS)})
        modes = {key: mode for key, history in self.modes.items() if (mode := history.last) is not None}
        self._require_same(node, index, "request modes", modes, dict(state.table(REQUEST_MODES)))
        quotas = [put for _, history in sorted(self.quotas.items()) if (put := history.last) is not None]
        self._require_same(node, index, "quotas", quotas, state.table(QUOTAS).rows())
        self._require_same(node, index, "accounts", self.accounts.puts(), accounts_of(state))
        self._require_same(node, index, "features", self.features, state.members.kinds)
        self.compare_undigested(node, index, state)

    def compare_restored(self, node: str, index: int, state: BrokerState, now: float, moment: float) -> None:
        """Compare the undigested part of a snapshot of the entry at `index`. `now` is the node's time."""
        self.compare_undigested(node, index, state)
        offsets = {key: offset for key, history in self.offsets.items() if (offset := history.at(index)) is not None}
        self._require_same(node, index, "offsets", offsets, _offsets_of(state))
        for key, history in self.committers.items():
            commit = history.at(index)
            if commit is None or commit.by is None or moment - commit.moment > REMEMBERED_S or key not in offsets:
                continue  # nothing is recorded about a deleted key
            known = [
                (committed_offset.offset, committed_offset.committer)
                for committed_offset in state.table(OFFSETS).recent.of(key, now)
            ]
            require(
                (commit.offset, commit.by) in known,
                "a restart forgets no recent committer",
                node=node,
                index=index,
                key=key,
                committed=commit,
                known=known,
            )

    def compare_undigested(self, node: str, index: int, state: BrokerState) -> None:
        """Compare trims and the version of topics. They belong to the state, but not to its digest."""
        self._require_same(node, index, "trimmed_before", self.trims.at(index), state.trims.before)
        self._require_same(node, index, "topic_version", self.topic_versions.at(index), state.topic_table.version)

    @staticmethod
    def _require_same(node: str, index: int, table: str, expected: object, found: object) -> None:
        require(
            expected == found,
            "the replicated state is what the log says",
            node=node,
            index=index,
            table=table,
            expected=expected,
            found=found,
        )


def _offsets_of(state: BrokerState) -> dict[OffsetKey, int]:
    return {
        (group, topic, queue_id): offset
        for group, topic in state.table(OFFSETS).pairs()
        for queue_id, offset in state.table(OFFSETS).of(group, topic).items()
    }


def _compare_topic(node: str, index: int, expected: Incarnation, found: TopicState) -> None:
    queues = {
        queue_id: (len(stored), expected.first_offsets.get(queue_id, 0)) for queue_id, stored in expected.queues.items()
    }
    held = {
        queue_id: (queue.next_offset, queue.first_offset)
        for queue_id, queue in found.queues.items()
        if queue.next_offset
    }
    require(
        (expected.created, expected.config, queues) == (found.created_position, found.config, held),
        "the replicated state is what the log says",
        node=node,
        index=index,
        table="topics",
        expected=(expected.created, expected.config, queues),
        found=(found.created_position, found.config, held),
    )
