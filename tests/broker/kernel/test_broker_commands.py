import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger.format import encode_command, iter_commands
from dledger_base.invariants import InvariantError
from dledger_broker.features import COMMANDS
from dledger_broker.features.access.table import TurnAccessOff, TurnAccessOn, TurnPeerTlsOn, TurnTlsOff, TurnTlsOn
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount, PutWhiteList, Rule
from dledger_broker.features.assignments.table import PutRequestMode
from dledger_broker.features.confirmations.commands import ConfirmLease, DeliveryRow
from dledger_broker.features.delay.commands import AddTimers, CancelTimers, EndTimers, FireTimers, MoveTimers
from dledger_broker.features.group_identity.table import SetGroupIdentity
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.leases.commands import LeasedPop, RenewedLease, RenewLeases
from dledger_broker.features.locks.table import DeleteLocks, DeleteRow, Owner, PutLocks, PutRow
from dledger_broker.features.offsets.recent_commits import Committer
from dledger_broker.features.offsets.table import CommitOffsets, DeleteOffsets
from dledger_broker.features.pins.table import DeletePins, PutPin
from dledger_broker.features.pop.commands import Ack, AckRow, Pop, PopRow, ResetPop, Revive, ReviveRow
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.features.resets.table import ResetOffsets, ResetRow, SeeReset
from dledger_broker.features.sending.dedup.remembered import REMEMBER_SENDS, LimitSends, RememberSends
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.features.speakers.table import PutSpeaker
from dledger_broker.features.transactions.table import EndHalf, Half, HalfOutcome, OpenHalf, ReopenHalf
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.commands import FIRST_KIND, LAST_BASE_KIND, CommandRegistry
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.members import Features, SetOrdinal
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

ROWS = [(1_700_000_000_000, 1 << 40, 300)]
EXAMPLES = [
    PutTopic(TopicConfig("orders", 4, 8, attributes={"+message.type": "FIFO"}), 1_700_000_000_000),
    DeleteTopic("orders"),
    PutGroup(SubscriptionGroupConfig("g", retry_max_times=3)),
    DeleteGroup("g", clean_offsets=True),
    CommitOffsets((("g", "orders", 3, 17), ("h", "orders", 0, -1)), (Committer(1 << 63, (2, 3), 4),), (0, -1)),
    DeleteOffsets((("g", "orders"),)),
    TrimQueues(1 << 40, (("orders", 48, 3, 12),)),
    *(Features("n0", (16, 17)), SetOrdinal(3), ActivateFeatures(("delay", "locks")), SetGroupIdentity("9f" * 16)),
    *(PutPin("job", 1 << 40, 3_600_000, 1_700_000_000_000), DeletePins(("job", "other"))),
    *(RememberSends(bytes(range(28))), LimitSends(120_000, 5_000_000), GroupTime(1_700_000_000_000)),
    *(command.of(ROWS) for command in (AddTimers, FireTimers, CancelTimers, MoveTimers)),
    EndTimers(1 << 40),
    PutLocks("g", Owner("", "anna"), (PutRow("orders", 0, None), PutRow("orders", 1, Owner("", "bert")))),
    DeleteLocks((DeleteRow("g", "orders", 0, Owner("", "anna")),)),
    OpenHalf((Half(1 << 40, 7, 300, 1_700_000_000_000, 0, "producers"),)),
    *(EndHalf(1 << 40, HalfOutcome.COMMITTED), ReopenHalf(1 << 40)),
    Pop("g", 1_700_000_000_000, 60_000, (PopRow("orders", 48, 0, 3, 5, (3, 4)),), is_ordered=True, attempt_id="a"),
    Ack((AckRow("g", "orders", 48, 0, 1_700_000_000_000, 0b10, 1_700_000_030_000, 30_000),)),
    Revive((ReviveRow("g", "orders", 48, 0, 1_700_000_000_000, 0b1),)),
    LeasedPop(Pop("g", 1_700_000_000_000, 60_000, (PopRow("orders", 48, 0, 3, 5, (3, 4)),)), "client"),
    ConfirmLease("client", "CG", 1_700_000_060_000, 60_000, (DeliveryRow("T1", 1 << 40, 3, 1_700_000_000_000),)),
    RenewLeases((RenewedLease("client", 1_700_000_060_000, 60_000), RenewedLease("gone", 1_700_000_000_000, 0))),
    PutSpeaker(PutAccount("proxy", "key:c2VjcmV0", custom=(Rule("Cluster:*", ("Speak",)),))),
    *(ResetPop("g", "orders", 48, 0, 7), PutRequestMode("T1", "CG", True, 3)),
    ResetOffsets("g", (ResetRow("orders", 48, 0, 7), ResetRow("orders", 48, 1, 0))),
    SeeReset("g", "orders", 0, 9, Committer(1, (2, 3), 4)),
    PutAccount(
        "app", "key:c2VjcmV0", True, False, ("10.0.0.7",), (Rule("Topic:T1", ("Pub",)),), (Rule("*", ("All",)),)
    ),
    *(DeleteAccount("app"), PutWhiteList(("10.0.0.7",)), PutQuota("topic", "T1", 100, 1 << 20)),
    PutSettings({"retention_hours": "48", "property_filter": ""}),
    *(TurnAccessOn(), TurnAccessOff(), TurnTlsOn(), TurnPeerTlsOn(), TurnTlsOff()),
]


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_a_command_survives_its_encoding_into_an_entry(command):
    section = COMMANDS.encode(command) + COMMANDS.encode(DeleteTopic("other"))
    found = [COMMANDS.decode(kind, payload) for kind, payload in iter_commands(section)]
    assert found == [command, DeleteTopic("other")]


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        *((REMEMBER_SENDS, bytes(size), f"{size} bytes are no rows") for size in (0, 13, 15)),
        (999, b"\x80", r"unknown kind 999.*upgrade this node"),
    ],
)
def test_invalid_rows_and_unknown_kinds_are_reported_as_corrupt(kind: int, payload: bytes, said: str):
    with pytest.raises(CorruptionError, match=said):
        COMMANDS.decode(kind, payload)


def test_command_kinds_are_unique_follow_the_kinds_of_the_log_and_have_no_gap_at_first():
    assert COMMANDS.kinds[: LAST_BASE_KIND - FIRST_KIND + 1] == tuple(range(FIRST_KIND, LAST_BASE_KIND + 1))
    assert (FIRST_KIND, LAST_BASE_KIND) == (16, 23)
    assert {type(command) for command in EXAMPLES} == set(COMMANDS.types.values())
    with pytest.raises(InvariantError, match="one meaning"):
        CommandRegistry({16: DeleteTopic}, {16: DeleteGroup})
    with pytest.raises(InvariantError, match="kinds of the log"):
        CommandRegistry({15: DeleteTopic})


def test_fields_of_a_newer_version_are_ignored():
    payload = msgspec.msgpack.encode({"topic": "orders", "why": "because"})
    ((kind, found),) = iter_commands(encode_command(17, payload))
    assert COMMANDS.decode(kind, found) == DeleteTopic("orders")


@given(st.sampled_from(sorted(COMMANDS.types)), st.binary(max_size=64))
def test_decoding_garbage_raises_only_corruption_errors(kind, payload):
    try:
        COMMANDS.decode(kind, payload)
    except CorruptionError:
        pass
