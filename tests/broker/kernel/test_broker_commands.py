import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger.format import encode_command, iter_commands
from dledger.invariants import InvariantError
from dledger_broker.features import COMMANDS
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount, PutWhiteList, Rule
from dledger_broker.features.assignments.table import PutRequestMode
from dledger_broker.features.delay.commands import AddTimers, CancelTimers, EndTimers, FireTimers, MoveTimers
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.locks.table import DeleteLocks, DeleteRow, Owner, PutLocks, PutRow
from dledger_broker.features.offsets.recent_commits import Committer
from dledger_broker.features.offsets.table import CommitOffsets, DeleteOffsets
from dledger_broker.features.pins.table import DeletePins, PutPin
from dledger_broker.features.pop.commands import Ack, AckRow, Pop, PopRow, ResetPop, Revive, ReviveRow
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.features.resets.table import ResetOffsets, ResetRow, SeeReset
from dledger_broker.features.sending.dedup.remembered import REMEMBER_SENDS, LimitSends, RememberSends
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.features.transactions.table import EndHalf, Half, HalfOutcome, OpenHalf, ReopenHalf
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.commands import FIRST_KIND, LAST_BASE_KIND, CommandRegistry
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.members import Features, SetOrdinal
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

EXAMPLES = [
    PutTopic(TopicConfig("orders", 4, 8, attributes={"+message.type": "FIFO"}), 1_700_000_000_000),
    DeleteTopic("orders"),
    PutGroup(SubscriptionGroupConfig("g", retry_max_times=3)),
    DeleteGroup("g", clean_offsets=True),
    CommitOffsets((("g", "orders", 3, 17), ("h", "orders", 0, -1)), (Committer(1 << 63, (2, 3), 4),), (0, -1)),
    DeleteOffsets((("g", "orders"),)),
    TrimQueues(1 << 40, (("orders", 48, 3, 12),)),
    Features("n0", (16, 17)),
    SetOrdinal(3),
    PutPin("job", 1 << 40, 3_600_000, 1_700_000_000_000),
    DeletePins(("job", "other")),
    RememberSends(bytes(range(28))),
    LimitSends(120_000, 5_000_000),
    ActivateFeatures(("delay", "locks")),
    GroupTime(1_700_000_000_000),
    AddTimers.of([(1_700_000_000_000, 1 << 40, 300)]),
    FireTimers.of([(1_700_000_000_000, 1 << 40, 300)]),
    CancelTimers.of([(1_700_000_000_000, 1 << 40, 300)]),
    MoveTimers.of([(1_700_000_000_000, 1 << 40, 300)]),
    EndTimers(1 << 40),
    PutLocks("g", Owner("", "anna"), (PutRow("orders", 0, None), PutRow("orders", 1, Owner("", "bert")))),
    DeleteLocks((DeleteRow("g", "orders", 0, Owner("", "anna")),)),
    OpenHalf((Half(1 << 40, 7, 300, 1_700_000_000_000, 0, "producers"),)),
    EndHalf(1 << 40, HalfOutcome.COMMITTED),
    ReopenHalf(1 << 40),
    Pop("g", 1_700_000_000_000, 60_000, (PopRow("orders", 48, 0, 3, 5, (3, 4)),), is_ordered=True, attempt_id="a"),
    Ack((AckRow("g", "orders", 48, 0, 1_700_000_000_000, 0b10, 1_700_000_030_000, 30_000),)),
    Revive((ReviveRow("g", "orders", 48, 0, 1_700_000_000_000, 0b1),)),
    ResetPop("g", "orders", 48, 0, 7),
    PutRequestMode("T1", "CG", True, 3),
    ResetOffsets("g", (ResetRow("orders", 48, 0, 7), ResetRow("orders", 48, 1, 0))),
    SeeReset("g", "orders", 0, 9, Committer(1, (2, 3), 4)),
    PutAccount(
        "app", "key:c2VjcmV0", True, False, ("10.0.0.7",), (Rule("Topic:T1", ("Pub",)),), (Rule("*", ("All",)),)
    ),
    DeleteAccount("app"),
    PutWhiteList(("10.0.0.7",)),
    PutSettings({"retention_hours": "48", "property_filter": ""}),
    PutQuota("topic", "T1", 100, 1 << 20),
]


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_a_command_comes_out_of_an_entry_as_it_went_in(command):
    section = COMMANDS.encode(command) + COMMANDS.encode(DeleteTopic("other"))
    found = [COMMANDS.decode(kind, payload) for kind, payload in iter_commands(section)]
    assert found == [command, DeleteTopic("other")]


@pytest.mark.parametrize("size", [0, 13, 15])
def test_remembered_rows_that_are_none_stop_the_replica(size: int):
    with pytest.raises(CorruptionError, match=f"{size} bytes are no rows"):
        COMMANDS.decode(REMEMBER_SENDS, bytes(size))


def test_kinds_follow_those_of_the_log_and_base_kinds_have_no_gap():
    assert COMMANDS.kinds[: LAST_BASE_KIND - FIRST_KIND + 1] == tuple(range(FIRST_KIND, LAST_BASE_KIND + 1))
    assert (FIRST_KIND, LAST_BASE_KIND) == (16, 23)
    assert {type(command) for command in EXAMPLES} == set(COMMANDS.types.values())


def test_an_unknown_kind_stops_the_replica_with_a_text_that_says_what_to_do():
    with pytest.raises(CorruptionError, match=r"unknown kind 999.*upgrade this node"):
        COMMANDS.decode(999, b"\x80")


def test_fields_of_a_newer_version_are_ignored():
    payload = msgspec.msgpack.encode({"topic": "orders", "why": "because"})
    ((kind, found),) = iter_commands(encode_command(17, payload))
    assert COMMANDS.decode(kind, found) == DeleteTopic("orders")


@given(st.sampled_from(sorted(COMMANDS.types)), st.binary(max_size=64))
def test_garbage_raises_nothing_but_corruption(kind, payload):
    try:
        COMMANDS.decode(kind, payload)
    except CorruptionError:
        pass


def test_a_kind_has_one_meaning_and_those_of_the_log_none_here():
    with pytest.raises(InvariantError, match="one meaning"):
        CommandRegistry({16: DeleteTopic}, {16: DeleteGroup})
    with pytest.raises(InvariantError, match="kinds of the log"):
        CommandRegistry({15: DeleteTopic})
