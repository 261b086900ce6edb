"""Every command kind keeps the bytes that entries carry, and older bytes keep their meaning."""

import msgspec

from dledger.format import COMMAND_HEADER_BYTES, iter_commands
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
from dledger_broker.features.pop.commands import NO_ROW, Ack, AckRow, Pop, PopRow, ResetPop, Revive, ReviveRow
from dledger_broker.features.quotas.table import PutQuota
from dledger_broker.features.resets.table import ResetOffsets, ResetRow, SeeReset
from dledger_broker.features.sending.dedup.remembered import LimitSends, RememberSends
from dledger_broker.features.settings.table import PutSettings
from dledger_broker.features.speakers.table import PutSpeaker
from dledger_broker.features.transactions.table import EndHalf, Half, HalfOutcome, OpenHalf, ReopenHalf
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND, Command
from dledger_broker.kernel.group_time import GroupTime
from dledger_broker.kernel.members import Features, SetOrdinal
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.recorded.golden_files import bytes_text, compare

LONGEST = "%RETRY%" + 120 * "g"
MOST_INT32 = (1 << 31) - 1
MOST_INT64 = (1 << 63) - 1

ANNA = Owner("account", "anna")
SPEAK = Rule("Cluster:*", ("Speak",), ("10.0.0.0/28",))
EXAMPLES: list[tuple[str, Command]] = [
    ("a topic with defaults", PutTopic(TopicConfig("orders"), 1_700_000_000_000)),
    (
        "a topic with everything",
        PutTopic(
            TopicConfig(LONGEST, MOST_INT32, 8, 7, "MULTI_TAG", 3, True, {"+message.type": "FIFO", "ключ": "値"}),
            MOST_INT64,
        ),
    ),
    ("a topic's end", DeleteTopic("orders")),
    ("a group with defaults", PutGroup(SubscriptionGroupConfig("readers"))),
    (
        "a group with everything",
        PutGroup(
            SubscriptionGroupConfig(
                120 * "g", False, False, False, True, 3, -1, MOST_INT64, 2, False, 1, 16, {"a": "1", "b": ""}
            )
        ),
    ),
    ("a group's end", DeleteGroup("readers")),
    ("a group's end with its offsets", DeleteGroup("readers", clean_offsets=True)),
    ("no offsets", CommitOffsets(())),
    ("offsets of nobody", CommitOffsets((("readers", "orders", 0, 0), ("readers", LONGEST, MOST_INT32, MOST_INT64)))),
    (
        "offsets with their committers",
        CommitOffsets(
            (("readers", "orders", 3, 17), ("others", "orders", 0, -1), ("readers", "bills", 1, 1 << 40)),
            (Committer(1 << 63, (3, 1 << 40), 7), Committer((1 << 64) - 1, (), 0)),
            (0, -1, 1),
        ),
    ),
    (
        "as many offsets as there may be",
        CommitOffsets(
            tuple(("readers", "orders", i, i << 20) for i in range(MAX_OFFSETS_PER_COMMAND)),
            tuple(Committer(i, (i + 1, i + 2), i + 3) for i in range(MAX_OFFSETS_PER_COMMAND)),
            tuple(range(MAX_OFFSETS_PER_COMMAND)),
        ),
    ),
    ("forgotten offsets", DeleteOffsets((("readers", "orders"), ("readers", "bills")))),
    ("a trim that no queue notices", TrimQueues(0, ())),
    ("a trim", TrimQueues(1 << 40, (("orders", 48, 3, 12), ("orders", MOST_INT64, 0, MOST_INT64)))),
    ("a member that understands nothing", Features("n0", ())),
    ("a member", Features("node-1", (*range(16, 29), 65_535))),
    ("the group's number", SetOrdinal(3)),
    ("a pin", PutPin("job", 1 << 40, 3_600_000, 1_700_000_000_000)),
    ("a pin of nothing", PutPin("", 0, 0, 0)),
    ("pins given up", DeletePins(("job", "other"))),
    ("group time", GroupTime(1_700_000_000_000)),
    ("the group's identity", SetGroupIdentity("9f" * 16)),
    ("the identity that a copy of the group has", SetGroupIdentity("3c" * 16, replaces=True)),
    ("a due message, and one that was not written", AddTimers.of([(1_700_000_000_000, 1 << 40, 300), (0, 0, 0)])),
    ("fired messages", FireTimers.of([(1_700_000_000_000, 1 << 40, 300), (1_700_000_000_000, 0, 91)])),
    ("a cancelled message", CancelTimers.of([((1 << 63) - 1, 300, 0xFFFFFFFF)])),
    ("a moved message", MoveTimers.of([(1, 2, 3)])),
    ("nothing moved", MoveTimers(b"")),
    ("the end of messages below a position", EndTimers(1 << 40)),
    ("a half", OpenHalf((Half(1 << 40, 7, 300, 1_700_000_006_000, 0, "producers"),))),
    ("checks of two halves", OpenHalf((Half(5, 0, 91, MOST_INT64, 15, ""), Half(1 << 40, 7, 300, 0, 1, 120 * "g")))),
    ("a commit", EndHalf(1 << 40, HalfOutcome.COMMITTED)),
    ("a half that is open again", ReopenHalf(1 << 40)),
    ("one remembered row", RememberSends(bytes(range(14)))),
    ("remembered rows", RememberSends(bytes(range(256))[: 14 * 18])),
    ("limits of what is remembered", LimitSends(120_000, 5_000_000)),
    ("nothing is remembered", LimitSends(0, 0)),
    ("features that are used from here on", ActivateFeatures(("delay", "locks"))),
    ("no feature", ActivateFeatures(())),
    ("locks", PutLocks("CG", ANNA, (PutRow("T1", 0, None), PutRow("T1", 1, Owner("", "bert"))))),
    ("locks that end", DeleteLocks((DeleteRow("CG", "T1", 0, ANNA), DeleteRow("CG", "%RETRY%CG", 1 << 30, ANNA)))),
    ("a pop", Pop("CG", 1_700_000_000_000, 60_000, (PopRow("T1", 1 << 40, 3, NO_ROW, 7, (4, 5, 6)),))),
    ("a pop in order, again", Pop("CG", 1_700_000_000_000, 1, (PopRow("T1", 5, 0, 7, 7, (4, 6), 9),), True, "attempt")),
    (
        "acknowledgements",
        Ack((AckRow("CG", "T1", 5, 0, 1_700_000_000_000, 0b101), AckRow("CG", "T1", 5, 0, 9, 1, 10, 30_000))),
    ),
    ("messages that come again", Revive((ReviveRow("CG", "%RETRY%CG+T1", 5, 0, 1_700_000_000_000, 0b11),))),
    ("a group that goes on elsewhere", ResetPop("CG", "T1", 5, 0, 1 << 40)),
    (
        "a pop under a lease",
        LeasedPop(Pop("CG", 1_700_000_000_000, 60_000, (PopRow("T1", 1 << 40, 3, NO_ROW, 7, (4, 5, 6)),)), "client"),
    ),
    (
        "deliveries that come under a lease",
        ConfirmLease("client", "CG", 1_700_000_060_000, 60_000, (DeliveryRow("T1", 1 << 40, 3, 1_700_000_000_000),)),
    ),
    ("leases", RenewLeases((RenewedLease("client", 1_700_000_060_000, 60_000), RenewedLease("gone", 1, 0)))),
    ("an account that speaks for others", PutSpeaker(PutAccount("proxy", "key:c2VjcmV0", custom=(SPEAK,)))),
    ("a group that pops", PutRequestMode("T1", "CG", True, -1)),
    ("a group that is reset", ResetOffsets("CG", (ResetRow("T1", 5, 0, 1 << 40), ResetRow("T1", 5, 1, 0)))),
    ("a reset that a consumer has seen", SeeReset("CG", "T1", 0, 1 << 40, Committer(1 << 63, (2, 3), 4))),
    (
        "an account",
        PutAccount("app", "key:c2VjcmV0", False, True, ("10.0.0.7",), (Rule("Topic:T1", ("Pub",), ("10.0.0.0/8",)),)),
    ),
    ("an account's end", DeleteAccount("app")),
    ("addresses that need no account", PutWhiteList(("10.0.0.7",))),
    ("keys that are set while nodes run", PutSettings({"retention_hours": "48", "property_filter": ""})),
    ("access control of the group", TurnAccessOn()),
    ("no access control any more", TurnAccessOff()),
    ("TLS of the group", TurnTlsOn()),
    ("TLS between its nodes", TurnPeerTlsOn()),
    ("no TLS any more", TurnTlsOff()),
    ("a quota", PutQuota("topic", "T1", 100, 1 << 20)),
    ("a quota that is taken back", PutQuota("account", "app")),
]

OLDER: list[tuple[str, int, object, Command]] = [
    ("offsets before committers were told", 20, {"offsets": [["g", "t", 1, 2]]}, CommitOffsets((("g", "t", 1, 2),))),
    ("a group's end before it could keep offsets", 19, {"group": "g"}, DeleteGroup("g")),
    (
        "a topic by its name alone",
        16,
        {"config": {"topicName": "t"}, "store_timestamp_ms": 5},
        PutTopic(TopicConfig("t"), 5),
    ),
    ("a group by its name alone", 18, {"config": {"groupName": "g"}}, PutGroup(SubscriptionGroupConfig("g"))),
    ("a field of a later version", 24, {"ordinal": 7, "later": [1, {"a": None}]}, SetOrdinal(7)),
]
"""Older payloads, as MessagePack objects, that this version still reads."""


def test_commands_are_written_as_recorded() -> None:
    compare(
        "commands",
        (
            f"{COMMANDS.kind_of(type(command))} {type(command).__name__} {what}: {bytes_text(COMMANDS.encode(command))}"
            for what, command in EXAMPLES
        ),
    )


def test_each_kind_has_an_example_that_is_read_back_equal_behind_a_header_of_six_bytes() -> None:
    assert {COMMANDS.kind_of(type(command)) for _, command in EXAMPLES} == set(COMMANDS.types) == set(COMMANDS.kinds)
    section = b"".join(COMMANDS.encode(command) for _, command in EXAMPLES)
    found = [COMMANDS.decode(kind, payload) for kind, payload in iter_commands(section)]
    assert found == [command for _, command in EXAMPLES]
    assert [type(command) for command in found] == [type(command) for _, command in EXAMPLES]
    assert COMMAND_HEADER_BYTES == 6
    for what, command in EXAMPLES:
        encoded, kind = COMMANDS.encode(command), COMMANDS.kind_of(type(command))
        assert COMMANDS.types[kind] is type(command), what
        assert encoded[:6] == kind.to_bytes(2, "big") + (len(encoded) - 6).to_bytes(4, "big"), what


def test_commands_of_older_and_later_versions_are_read() -> None:
    for what, kind, fields, command in OLDER:
        assert COMMANDS.decode(kind, msgspec.msgpack.encode(fields)) == command, what
