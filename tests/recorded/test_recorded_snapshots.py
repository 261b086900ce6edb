"""Snapshots of states that cover each table keep the bytes that a replica sends and stores, and the states' digests."""

import hashlib
import struct
from collections.abc import Callable

import msgspec
import pytest

from dledger.statemachine import CommittedEntry
from dledger_broker.features import COMMANDS, FEATURES
from dledger_broker.features.access.table import TurnAccessOn, TurnPeerTlsOn, TurnTlsOn
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount, PutWhiteList, Rule
from dledger_broker.features.assignments.table import PutRequestMode
from dledger_broker.features.delay.commands import AddTimers, EndTimers, FireTimers
from dledger_broker.features.group_identity.table import SetGroupIdentity
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.leases.commands import LeasedPop, RenewedLease, RenewLeases
from dledger_broker.features.locks.table import DeleteLocks, DeleteRow, Owner, PutLocks, PutRow
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer
from dledger_broker.features.offsets.table import CommitOffsets, DeleteOffsets
from dledger_broker.features.pins.table import DeletePins, PutPin
from dledger_broker.features.pop.commands import NO_ROW, Ack, AckRow, Pop, PopRow, ResetPop, Revive, ReviveRow
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.features.resets.table import RESETS, ResetOffsets, ResetRow, SeeReset
from dledger_broker.features.sending.dedup.remembered import LimitSends, RememberSends
from dledger_broker.features.sending.dedup.rows import ERA_ROWS
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.features.transactions.table import EndHalf, Half, HalfOutcome, OpenHalf, ReopenHalf
from dledger_broker.kernel import snapshot
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.members import Features, SetOrdinal
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.tables import ROWS_PER_FRAME, Changes
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.record import STORE_TIMESTAMP_PLACE
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.recorded.golden_files import bytes_text, compare

NOW = 5_000.0
"""Time of the event loop's clock when a snapshot is taken, in seconds."""
STORE_MS = 1_700_000_000_000
MANY = 2 * ROWS_PER_FRAME + 7
"""Number of rows of a table that needs three frames."""


class Replica:
    """State with the entries that it applies."""

    def __init__(self) -> None:
        self.state = BrokerState(FEATURES)
        self._index = 0
        self._position = 1 << 33

    def apply(self, *commands: Command, store_ms: int = STORE_MS, at: float = NOW) -> None:
        """Apply an entry with this store time of its first record, at a time of the event loop's clock."""
        record = bytes(STORE_TIMESTAMP_PLACE) + store_ms.to_bytes(8, "big")  # applying reads no further field
        section = b"".join(map(COMMANDS.encode, commands))
        entry = CommittedEntry(self._index, 1, self._position, record, section)
        self.state.apply(entry, Changes(self.state.tables), COMMANDS)
        for table in self.state.tables:
            table.batch_applied(lambda: at)
        self._index, self._position = self._index + 1, entry.end

    def store(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Set a queue's end, as if messages were stored up to an offset."""
        queue = self.state.topics[topic].queue(queue_id)
        queue.next_offset = queue.staged_offset = next_offset
        self.state.topic_table.queues_changed((queue,))


def empty(_: Replica) -> None:
    pass


def topics(replica: Replica) -> None:
    replica.apply(PutTopic(TopicConfig("orders"), STORE_MS), PutTopic(TopicConfig("gone"), STORE_MS))
    replica.apply(
        PutTopic(TopicConfig("bills", 4, 8, 6, "MULTI_TAG", 1, True, {"+message.type": "FIFO", "a": "ß"}), STORE_MS)
    )
    replica.apply(DeleteTopic("gone"))
    replica.apply(PutTopic(TopicConfig("orders", 3, 3), STORE_MS))


def queues(replica: Replica) -> None:
    replica.apply(PutTopic(TopicConfig("orders", 2, 2), STORE_MS))
    created = replica.state.topics["orders"].created_position
    replica.store("orders", 1, 12)
    replica.store("orders", 0, 1 << 40)
    replica.state.topics["orders"].queue(7)  # this queue never held a message
    replica.apply(TrimQueues(1 << 34, (("orders", created, 1, 12), ("orders", created, 0, 5), ("absent", 1, 0, 9))))


def groups(replica: Replica) -> None:
    replica.apply(PutGroup(SubscriptionGroupConfig("readers")), PutGroup(SubscriptionGroupConfig("gone")))
    replica.apply(
        PutGroup(SubscriptionGroupConfig("others", False, False, False, True, 2, 3, 4, 5, False, 6, 7, {"k": "v"})),
        DeleteGroup("gone", clean_offsets=True),
    )


def offsets_of_nobody(replica: Replica) -> None:
    rows = (("readers", "orders", 3, 17), ("readers", "orders", 0, 1 << 40), ("others", "bills", 1, 0))
    replica.apply(CommitOffsets(rows), at=NOW - LATE_COMMIT_S - 1)
    replica.apply(CommitOffsets((("readers", "gone", 0, 5),)), DeleteOffsets((("readers", "gone"),)), at=NOW - 100)


def offsets_with_committers(replica: Replica) -> None:
    one, other = Committer(1 << 63, (3, 1 << 40), 7), Committer(2, (), (1 << 64) - 1)
    replica.apply(CommitOffsets((("readers", "orders", 3, 1),), (one,), (0,)), at=NOW - LATE_COMMIT_S - 1)
    replica.apply(
        CommitOffsets((("readers", "orders", 0, 9), ("others", "orders", 0, 8)), (one,), (0, -1)), at=NOW - 60
    )
    replica.apply(
        CommitOffsets((("readers", "orders", 0, 11), ("readers", "bills", 1, 2)), (one, other), (1, 0)), at=NOW - 1
    )


def features(replica: Replica) -> None:
    replica.apply(Features("n1", (16, 17)), Features("n0", tuple(range(16, 29))), Features("n2", ()))
    replica.apply(Features("n1", (16, 28)))


def ordinal(replica: Replica) -> None:
    replica.apply(SetOrdinal(3), SetOrdinal(4))


def group_time(replica: Replica) -> None:
    replica.apply(GroupTime(STORE_MS + 60_000), GroupTime(STORE_MS))
    replica.apply(SetGroupIdentity("9f" * 16))


def pins(replica: Replica) -> None:
    replica.apply(PutPin("job", 1 << 40, 3_600_000, STORE_MS), PutPin("gone", 5, 1, 2), PutPin("other", 0, 0, 0))
    replica.apply(PutPin("job", 1 << 39, 60_000, STORE_MS + 5), DeletePins(("gone", "absent")))


def locks(replica: Replica) -> None:
    rows = tuple(PutRow("T1", queue_id, None) for queue_id in range(2))
    replica.apply(PutLocks("CG", Owner("", "anna"), rows), PutLocks("CG2", Owner("account", "bert"), rows))
    replica.apply(DeleteLocks((DeleteRow("CG", "T1", 1, Owner("", "anna")),)))


def popped(replica: Replica) -> None:
    groups(replica)
    topics(replica)
    created = replica.state.topics["orders"].created_position
    rows = tuple(PopRow("orders", created, queue_id, NO_ROW, 5, (1, 2, 4)) for queue_id in range(2))
    replica.apply(
        Pop("readers", STORE_MS, 60_000, rows), Ack((AckRow("readers", "orders", created, 0, STORE_MS, 0b101),))
    )
    replica.apply(Revive((ReviveRow("readers", "orders", created, 1, STORE_MS, 0b010),)))
    again = PopRow("orders", created, 1, 5, 5, (1, 4), STORE_MS)
    replica.apply(
        Pop("readers", STORE_MS + 1, 60_000, (again,), True, "attempt"), ResetPop("readers", "orders", created, 0, 9)
    )


def leased(replica: Replica) -> None:
    popped(replica)
    created = replica.state.topics["orders"].created_position
    row = PopRow("orders", created, 1, 5, 8, (6, 7))
    replica.apply(LeasedPop(Pop("readers", STORE_MS + 2, 60_000, (row,)), "anna"))
    replica.apply(RenewLeases((RenewedLease("anna", STORE_MS + 90_000, 60_000),)))


def request_modes(replica: Replica) -> None:
    replica.apply(PutRequestMode("orders", "readers", True, -1), PutRequestMode("orders", "others", False, 0))


def accounts(replica: Replica) -> None:
    rules = (Rule("Topic:orders", ("Pub", "Sub")), Rule("Topic:*", ("Pub",), ("10.0.0.0/8",), allow=False))
    replica.apply(
        PutAccount("app", "key:c2VhbGVk", custom=rules[:1], default=rules[1:]),
        PutAccount("admin", "key:c2VhbGVk", admin=True, white_list=("10.0.0.7",)),
        PutAccount("gone", "key:c2VhbGVk", enabled=False),
        DeleteAccount("gone"),
        PutWhiteList(("127.0.0.1",)),
    )


def reset(replica: Replica) -> None:
    groups(replica)
    topics(replica)
    created = replica.state.topics["orders"].created_position
    rows = tuple(ResetRow("orders", created, queue_id, 7) for queue_id in range(2))
    replica.apply(ResetOffsets("readers", rows))
    number = replica.state.table(RESETS).pending["readers", "orders", 1].number
    replica.apply(SeeReset("readers", "orders", 1, number, Committer(1 << 60, (2, 3), 4)))


def quotas(replica: Replica) -> None:
    replica.apply(PutQuota("topic", "T1", 100, 1 << 20), PutQuota("account", "app", 5))
    replica.apply(PutQuota("topic", "T1", 200), PutQuota("topic", "T2", 1), PutQuota("topic", "T2"))


def access(replica: Replica) -> None:
    replica.apply(TurnAccessOn())


def tls(replica: Replica) -> None:
    replica.apply(TurnTlsOn(), TurnPeerTlsOn())


def settings(replica: Replica) -> None:
    replica.apply(PutSettings({"retention_hours": "48", "property_filter": "false"}))
    replica.apply(PutSettings({"property_filter": ""}))


def limits_alone(replica: Replica) -> None:
    replica.apply(LimitSends(120_000, 5_000_000))


def remembered_sends(replica: Replica) -> None:
    replica.apply(LimitSends(12_800, 1_000))
    for number in range(40):
        replica.apply(remembered(3, first=10 * number), store_ms=STORE_MS + 700 * number)
    replica.apply(remembered(2, first=500), store_ms=STORE_MS)  # a clock that went back


def remembered_no_more(replica: Replica) -> None:
    remembered_sends(replica)
    replica.apply(LimitSends(0, 0))


def timers(replica: Replica) -> None:
    replica.apply(AddTimers.of([(STORE_MS, 1 << 20, 300), (STORE_MS + 1, 2 << 20, 400), (STORE_MS, 3 << 20, 500)]))
    replica.apply(FireTimers.of([(STORE_MS, 3 << 20, 500)]), EndTimers(1 << 20))


def halves(replica: Replica) -> None:
    one, other = Half(1 << 40, 7, 300, STORE_MS, 0, "producers"), Half(1 << 41, 8, 400, STORE_MS + 1, 0, "others")
    lost = Half(5, 0, 91, STORE_MS, 0, "others")
    replica.apply(OpenHalf((lost, one, other)), OpenHalf((Half(1 << 41, 8, 400, STORE_MS + 9, 3, "others"),)))
    replica.apply(EndHalf(1 << 40, HalfOutcome.UNDECIDED), ReopenHalf(1 << 40), TrimQueues(6, ()))


def many_topics(replica: Replica) -> None:
    for number in range(MANY):
        replica.apply(PutTopic(TopicConfig(f"topic-{number}", 1, 1, attributes={"n": str(number)}), STORE_MS))
        replica.store(f"topic-{number}", 0, number + 1)


def many_queues(replica: Replica) -> None:
    replica.apply(PutTopic(TopicConfig("orders", MANY, MANY), STORE_MS))
    for number in range(MANY):
        replica.store("orders", number, number + 1)


def many_groups(replica: Replica) -> None:
    replica.apply(*(PutGroup(SubscriptionGroupConfig(f"group-{number}")) for number in range(MANY)))


def many_offsets(replica: Replica) -> None:
    for number in range(MANY):
        rows = tuple((f"group-{number}", "orders", queue_id, number + queue_id) for queue_id in range(3))
        replica.apply(CommitOffsets(rows, (Committer(number, (number,), 1),), (0, -1, 0)), at=NOW - number % 100)


def many_pins(replica: Replica) -> None:
    replica.apply(*(PutPin(f"job-{number}", number << 20, 60_000, STORE_MS + number) for number in range(MANY)))


def more_than_an_era_of_sends(replica: Replica) -> None:
    fill_eras(replica, window_ms=12_800_000)


def an_era_of_which_some_sends_have_expired(replica: Replica) -> None:
    fill_eras(replica, window_ms=12_800)


def fill_eras(replica: Replica, window_ms: int, step: int = 4_000) -> None:
    replica.apply(LimitSends(window_ms, 4 * ERA_ROWS))
    for number in range(0, ERA_ROWS + 3 * step, step):
        replica.apply(remembered(step, first=number), store_ms=STORE_MS + number // 20)


def everything(replica: Replica) -> None:
    for fill in (
        queues, topics, groups, offsets_with_committers, features, ordinal, pins, remembered_sends, timers, group_time,
        halves,
    ):  # fmt: skip
        fill(replica)


def remembered(count: int, first: int) -> RememberSends:
    """Return rows with different families and members, at positions from `first` on."""
    numbers = range(first + 1, first + 1 + count)
    families = [number * 2_654_435_761 & 0xFFFFFFFF for number in numbers]
    members = [1 << number % 16 for number in numbers]
    return RememberSends(struct.pack(f">{count}I{count}H{count}Q", *families, *members, *(n << 10 for n in numbers)))


LARGE: tuple[Callable[[Replica], None], ...] = (
    *(many_topics, many_queues, many_groups, many_offsets, many_pins),
    *(more_than_an_era_of_sends, an_era_of_which_some_sends_have_expired),
)
STATES: tuple[Callable[[Replica], None], ...] = (
    *(empty, topics, queues, groups, offsets_of_nobody, offsets_with_committers, features, ordinal, group_time, pins),
    *(
        locks,
        popped,
        leased,
        request_modes,
        reset,
        accounts,
        settings,
        quotas,
        access,
        tls,
        limits_alone,
        remembered_sends,
    ),
    *(remembered_no_more, timers, halves, *LARGE, everything),
)


def state_of(fill: Callable[[Replica], None]) -> BrokerState:
    replica = Replica()
    fill(replica)
    return replica.state


def stream_of(state: BrokerState) -> bytes:
    return b"".join(snapshot.encode_state(state, NOW))


def frames_of(stream: bytes) -> list[bytes]:
    """Return the payloads of a stream's frames."""
    frames = []
    while stream:
        end = 4 + int.from_bytes(stream[:4], "big")
        frames.append(stream[4:end])
        stream = stream[end:]
    return frames


def kinds_of(stream: bytes) -> list[str]:
    return [msgspec.msgpack.decode(frame)["type"] for frame in frames_of(stream)]


def described(fill: Callable[[Replica], None]) -> list[str]:
    """Return a state's digest, the hash of its snapshot, and each frame."""
    state = state_of(fill)
    stream = stream_of(state)
    name = fill.__name__.replace("_", " ")
    frames = [f"  {kind}: {bytes_text(frame)}" for kind, frame in zip(kinds_of(stream), frames_of(stream), strict=True)]
    sha256 = hashlib.sha256(stream).hexdigest()
    return [f"{name}: digest {state.digest():016x}, {len(stream)} bytes, sha256 {sha256}", *frames]


def test_snapshots_are_written_as_recorded() -> None:
    compare("snapshots", [line for fill in STATES for line in described(fill)])


@pytest.mark.parametrize("fill", STATES)
def test_a_restored_state_has_the_same_snapshot_and_digest(fill: Callable[[Replica], None]) -> None:
    state = state_of(fill)
    stream = stream_of(state)
    restored = snapshot.decode_state([stream], NOW, FEATURES)
    assert restored.digest() == state.digest()
    if fill is an_era_of_which_some_sends_have_expired:  # the first row that is kept begins an era, so the runs differ
        assert columns_of(stream_of(restored)) == columns_of(stream)
    else:
        assert stream_of(restored) == stream


def columns_of(stream: bytes) -> list[bytes]:
    """Return every frame that is no run, followed by the columns of all runs, each joined."""
    frames = [msgspec.msgpack.decode(frame) for frame in frames_of(stream)]
    runs = [frame for frame in frames if frame["type"] == "run"]
    others = [msgspec.msgpack.encode(frame) for frame in frames if frame["type"] != "run"]
    return [*others, *(b"".join(run[column] for run in runs) for column in ("families", "members", "positions"))]


def test_each_kind_of_frame_stands_in_the_snapshot_of_everything() -> None:
    kinds = kinds_of(stream_of(state_of(everything)))
    of_tables = {frame.__struct_config__.tag for table in BrokerState(FEATURES).tables for frame in table.frames}
    assert {"start", *snapshot.FRAME_ORDER, "end"} <= set(kinds)
    alone = {
        *("access", "accounts", "white-list", "activated", "locks", "pop-queues", "deliveries", "ended-deliveries"),
        *("request-modes", "quotas", "resets", "seen-resets", "settings", "tls", "pop-leases", "leased-deliveries"),
    }
    assert set(kinds) | alone == {"start", *of_tables, "end"}
    assert (kinds[0], kinds[-1]) == ("start", "end")


@pytest.mark.parametrize("fill", STATES[1:])
def test_each_state_has_a_digest_of_its_own(fill: Callable[[Replica], None]) -> None:
    others = {other.__name__: state_of(other).digest() for other in (empty, everything) if other is not fill}
    if fill is remembered_no_more:
        assert state_of(fill).digest() == others["empty"]
    else:
        assert state_of(fill).digest() not in others.values()


@pytest.mark.parametrize("fill", LARGE)
def test_large_tables_take_several_frames(fill: Callable[[Replica], None]) -> None:
    kinds = kinds_of(stream_of(state_of(fill)))
    assert max(map(kinds.count, kinds)) >= 3
