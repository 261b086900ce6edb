"""The replicated state that must follow from the entries of the log, worked out beside the code under test.

`truth` reads the log and says here what its commands change; every replica's tables must then say the same. What held
when is kept, too, so that answers can be judged that were right a moment ago.
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
"""Who committed is remembered for so long at least, by clocks that may drift."""
OffsetKey: TypeAlias = tuple[str, str, int]
"""Consumer group, topic, queue id."""
Change: TypeAlias = tuple[object, ...]
"""A change that a client asked for, as its entry will name it."""


class Stored(NamedTuple):
    """A message in the log."""

    operation: int
    topic: str
    created: int
    queue_id: int
    offset: int
    position: int
    size: int
    tag_code: int
    at_ms: int
    """The highest store time in the log by then."""
    entry_index: int = -1
    moment: float = 0.0
    """When its entry was first applied, simulated seconds."""


class Claim(NamedTuple):
    """A pin that its reader may rely on: the log is kept from `position` on until `until`, simulated seconds."""

    position: int
    until: float


class Incarnation:
    """A topic from its creation to its deletion."""

    __slots__ = ("config", "created", "first_offsets", "name", "queues")

    def __init__(self, name: str, created: int) -> None:
        self.name = name
        self.created = created
        self.config = TopicConfig(name)
        self.queues: dict[int, list[Stored]] = {}
        self.first_offsets: dict[int, int] = {}

    def kept(self, queue_id: int) -> list[Stored]:
        """What no trim has been announced for."""
        return self.queues.get(queue_id, [])[self.first_offsets.get(queue_id, 0) :]

    def end_after(self, queue_id: int, index: int) -> int:
        """Where a queue ended once the entry at `index` was applied."""
        return bisect_right(self.queues.get(queue_id, []), index, key=lambda stored: stored.entry_index)

    def end_before(self, queue_id: int, moment: float) -> int:
        """Where a queue ended, in the whole group, just before a moment."""
        return bisect_left(self.queues.get(queue_id, []), moment, key=lambda stored: stored.moment)

    def skipped(self, queue_id: int, start: int, end: int, codes: frozenset[int] | None = None) -> Stored | None:
        """The first message between two offsets that is kept and that a filter lets through; None if there is none."""
        start = max(start, self.first_offsets.get(queue_id, 0))
        wanted = (
            stored for stored in self.queues.get(queue_id, [])[start:end] if codes is None or stored.tag_code in codes
        )
        return next(wanted, None)


class _Commit(NamedTuple):
    """A commit of an offset in the log, and who is said to have made it."""

    offset: int
    by: Committer | None
    moment: float
    """When its entry was first applied, simulated seconds."""


class Expected:
    """The tables, and what they held when."""

    def __init__(self) -> None:
        self.incarnations: Final[dict[tuple[str, int], Incarnation]] = {}
        """Of all times, by name and position of the creation."""
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
        """Below these positions the log need not be kept."""
        self.topic_versions: Final[History[int]] = History(0)
        """How often topics have changed."""
        self.accounts: Final = AccountTruth()
        self.pins: dict[str, Pin] = {}
        self.features: dict[str, tuple[int, ...]] = {}
        self._attempts: Counter[Change] = Counter()
        self._refused: set[Change] = set()
        self._seen: set[Change] = set()

    def put_pin(self, pin: Pin) -> None:
        """Of two positions the lower one counts, of two renewals the later one."""
        before = self.pins.get(pin.name, pin)
        self.pins[pin.name] = Pin(
            pin.name, min(before.position, pin.position), pin.lease_ms, max(before.renewed_ms, pin.renewed_ms)
        )

    def end_modes(self, index: int, moment: float, *, topic: str = "", group: str = "") -> None:
        """A topic or a group is gone, and with it how it was consumed."""
        for key, history in self.modes.items():
            if history.last is not None and (key.topic == topic or key.group == group):
                history.put(index, moment, None)

    def see_setting(self, command: PutQuota | PutAccount | DeleteAccount, index: int, moment: float) -> None:
        """A quota, or an account, is put, or taken back."""
        if isinstance(command, PutQuota):
            self.see(("quota", command))
            kept = command if command.messages or command.size else None
            self.quotas[QuotaOwner(command.kind, command.name)].put(index, moment, kept)
        else:
            self.see(change_of(command))
            self.accounts.see(command, index, moment)

    def see_committers(self, command: CommitOffsets, index: int, moment: float, void: Container[OffsetKey]) -> None:
        """Who commits, as every replica is to remember it for a while; what has no effect in `void` is left out."""
        by = command.by or (-1,) * len(command.offsets)
        for (group, topic, queue_id, offset), number in zip(command.offsets, by, strict=True):
            if (group, topic, queue_id) in void:
                continue
            committer = command.committers[number] if number >= 0 else None
            self.committers[group, topic, queue_id].put(index, moment, _Commit(offset, committer, moment))

    # ---------------------------------------------------------------- what was refused

    def attempt(self, change: Change) -> None:
        """A client asks for a change; it may have asked before."""
        self._attempts[change] += 1
        self._refused.discard(change)

    def refuse(self, change: Change) -> None:
        """It was told that nothing came of it; of a change that was asked for more than once nobody knows."""
        if self._attempts[change] == 1:
            require(change not in self._seen, "what was refused is never done", change=change)
            self._refused.add(change)

    def see(self, change: Change) -> None:
        """The log has it."""
        require(change not in self._refused, "what was refused is never done", change=change)
        self._seen.add(change)

    # ---------------------------------------------------------------- replicas

    def compare(self, node: str, index: int, state: BrokerState) -> None:
        """A replica's tables once the newest entry, at `index`, is applied."""
        topics = {name: value for name, history in self.topics.items() if (value := history.last) is not None}
        self._same(node, index, "topics", topics.keys(), state.topics.keys())
        for name, topic in state.topics.items():
            _compare_topic(node, index, topics[name], topic)
        groups = {name: config for name, history in self.groups.items() if (config := history.last) is not None}
        self._same(node, index, "groups", groups, state.table(GROUPS).by_name)
        offsets = {key: offset for key, history in self.offsets.items() if (offset := history.last) is not None}
        self._same(node, index, "offsets", offsets, _offsets_of(state))
        self._same(node, index, "pins", self.pins, {pin.name: pin for pin in state.table(PINS)})
        modes = {key: mode for key, history in self.modes.items() if (mode := history.last) is not None}
        self._same(node, index, "request modes", modes, dict(state.table(REQUEST_MODES)))
        quotas = [put for _, history in sorted(self.quotas.items()) if (put := history.last) is not None]
        self._same(node, index, "quotas", quotas, state.table(QUOTAS).rows())
        self._same(node, index, "accounts", self.accounts.puts(), accounts_of(state))
        self._same(node, index, "features", self.features, state.members.kinds)
        self.compare_undigested(node, index, state)

    def compare_restored(self, node: str, index: int, state: BrokerState, now: float, moment: float) -> None:
        """What a snapshot of the entry at `index` holds beside what belongs to the digest; `now` is the node's time."""
        self.compare_undigested(node, index, state)
        offsets = {key: offset for key, history in self.offsets.items() if (offset := history.at(index)) is not None}
        self._same(node, index, "offsets", offsets, _offsets_of(state))
        for key, history in self.committers.items():
            commit = history.at(index)
            if commit is None or commit.by is None or moment - commit.moment > REMEMBERED_S or key not in offsets:
                continue  # of what a deletion has taken along nothing needs to be known
            known = [(taken.offset, taken.by) for taken in state.table(OFFSETS).recent.of(key, now)]
            require(
                (commit.offset, commit.by) in known,
                "a restart forgets nothing of who committed of late",
                node=node,
                index=index,
                key=key,
                committed=commit,
                known=known,
            )

    def compare_undigested(self, node: str, index: int, state: BrokerState) -> None:
        """What is trimmed, and how often topics have changed, belongs to the state, but not to its digest."""
        self._same(node, index, "trimmed_before", self.trims.at(index), state.trims.before)
        self._same(node, index, "topic_version", self.topic_versions.at(index), state.topic_table.version)

    @staticmethod
    def _same(node: str, index: int, table: str, expected: object, found: object) -> None:
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
