"""Resets of groups whose consumers pull: where the consumers go on, and which commits count meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, make_group, pull_ext, submit

from dledger_broker.clients.relay import Relay
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.resets.consumers import MAX_STATUS_BYTES, SLOWNESS_S
from dledger_broker.features.resets.table import RESETS, ResetOffsets, ResetRow
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.resets import decode_reset, decode_statuses, encode_status
from dledger_remoting.statistics import decode_topic_stats
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig

RESET, CLONE, STATUS, TOLD, ASKED = 222, 314, 223, 220, 221
QUERY, COMMIT, SEARCH, STATISTICS = 14, 15, 29, 202
DELETE_GROUP, DELETE_TOPIC = 207, 215
FOUND, NOTHING, ELSEWHERE, BUSY = 0, 19, 21, 2
KEY = ("CG", "T1", 0)
Q0 = MessageQueue("broker-a", 0, "T1")


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    broker = make_broker()
    make_group(broker)
    client = broker.client("producer/1")
    for number in range(10):
        assert client.send_message("T1", b"%d" % number).code == FOUND
    return broker


@pytest.fixture
def member(broker: ServedBroker) -> FakeClient:
    return join(broker, "c1", "node-a/1")


def join(
    broker: ServedBroker, client_id: str, channel: str, language: LanguageCode = LanguageCode.NODE_JS
) -> FakeClient:
    """Return a member of the group, which understands no requests unless its language says otherwise."""
    client = broker.client(channel)
    consumer = ConsumerData("CG", subscription_data_set=[SubscriptionData("T1", "*", sub_version=1)])
    local = broker.service.gossip.local
    local.heartbeat(client, HeartbeatData(client_id, [], [consumer]), language, 479, broker.memory.env.now())
    return client


def reset(broker: ServedBroker, timestamp: int = -1, *, force: bool = True, group: str = "CG", **fields: str) -> int:
    ext = {"topic": "T1", "group": group, "timestamp": str(timestamp), "isForce": str(force).lower(), **fields}
    answer = broker.client("tool/1").call_from_disk(RESET, ext)
    return decode_reset(answer.body)[Q0] if answer.code == FOUND else -answer.code


def reset_to_3(broker: ServedBroker, seen_by: FakeClient | None = None) -> None:
    """Reset the group's offset in queue 0 to 3, and have a client see that."""
    assert reset(broker, 0, queueId="0", offset="3") == 3
    if seen_by is not None:
        assert query(seen_by) == 3
        pull(seen_by, 3)
        assert pending(broker) is None


def commit(broker: ServedBroker, client: FakeClient, offset: int, **fields: str) -> int:
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(offset), **fields}
    sent = client.send(COMMIT, ext)
    broker.advance(1)
    broker.settle()
    return client.answered(sent).code


def query(client: FakeClient) -> int:
    answer = client.call(QUERY, {"consumerGroup": "CG", "topic": "T1", "queueId": "0"})
    return int(answer.ext["offset"])


def committed(broker: ServedBroker) -> int | None:
    return broker.memory.machine.state.table(OFFSETS).get(*KEY)


def pending(broker: ServedBroker) -> int | None:
    found = broker.memory.machine.state.table(RESETS).pending.get(KEY)
    return None if found is None else found.offset


def pull(client: FakeClient, offset: int) -> tuple[int, int]:
    answer = client.call_from_disk(11, pull_ext("T1", offset=offset))
    client.broker.settle()
    return answer.code, int(answer.ext["nextBeginOffset"])


def asked(client: FakeClient, code: int = TOLD) -> list[tuple[dict[str, str], bytes]]:
    """Return the requests of a code that a client got from the broker."""
    return [(ext, body) for (of, ext), body in zip(client.pushed, client.pushed_bodies, strict=True) if of == code]


# ---------------------------------------------------------------- where a group goes on


@pytest.mark.parametrize(
    ("timestamp", "fields", "expected"),
    [
        (-1, {}, 10),
        (0, {}, 0),
        (0, {"queueId": "0", "offset": "4"}, 4),
        (0, {"queueId": "0", "offset": "-1"}, 0),
        (0, {"queueId": "0", "offset": "11"}, -1),
        (0, {"queueId": "64"}, -29),
        (-2, {}, -29),
    ],
)
def test_a_group_can_be_reset_to_a_time_the_end_or_an_offset(
    broker: ServedBroker, timestamp: int, fields: dict[str, str], expected: int
) -> None:
    assert reset(broker, timestamp, **fields) == expected
    assert committed(broker) == (expected if expected >= 0 else None)


@pytest.mark.parametrize("begins", [6, 10])
def test_a_reset_skips_no_message_that_only_other_nodes_keep(broker: ServedBroker, begins: int) -> None:
    """The leader's log begins at offset 6 of the queue, or behind its last message."""
    queue = broker.memory.machine.queue("T1", 0)
    assert queue is not None
    queue.view.start = begins
    assert reset(broker, 0) == 0
    first = {"topic": "T1", "queueId": "0", "timestamp": "0"}
    client = broker.client("tool/2")
    assert client.call_from_disk(SEARCH, first).ext["offset"] == "0"
    ranges, _ = decode_topic_stats(client.call_from_disk(STATISTICS, {"topic": "T1"}).body)
    assert (ranges[Q0].min_offset, ranges[Q0].max_offset) == (0, 10)


def test_a_reset_without_force_never_skips_messages(broker: ServedBroker, member: FakeClient) -> None:
    assert commit(broker, member, 6) == FOUND
    assert [reset(broker, -1, force=False), reset(broker, 0, force=False)] == [6, 0]


def test_a_group_or_topic_that_is_not_there_is_refused(broker: ServedBroker) -> None:
    assert reset(broker, group="other") == -26
    ext = {"topic": "T9", "group": "CG", "timestamp": "-1", "isForce": "true"}
    assert broker.client("tool/1").call(RESET, ext).code == 17


@pytest.mark.parametrize(
    ("deletion", "ext", "code", "name"),
    [(DELETE_GROUP, {"groupName": "CG", "cleanOffset": "true"}, 26, "CG"), (DELETE_TOPIC, {"topic": "T1"}, 17, "T1")],
)
def test_no_reset_slips_in_behind_the_deletion_of_its_group_or_topic(
    broker: ServedBroker, deletion: int, ext: dict[str, str], code: int, name: str
) -> None:
    tool = broker.client("tool/1")

    async def scenario() -> int:
        asked = tool.send(RESET, {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true"})
        tool.send(deletion, ext)
        await asyncio.sleep(0)  # the reset goes on, and nothing is applied yet
        return asked

    opaque = asyncio.run(scenario())
    broker.settle()
    assert_refused(tool.answered(opaque), code, name)
    assert (committed(broker), pending(broker)) == (None, None)


# ---------------------------------------------------------------- consumers


def test_a_pull_and_a_query_give_the_offset_of_a_reset(broker: ServedBroker, member: FakeClient) -> None:
    reset_to_3(broker)
    assert query(member) == 3
    assert pull(member, 10) == (ELSEWHERE, 3)
    assert pull(member, 3) == (FOUND, 10)
    assert pending(broker) is None


def test_a_consumer_at_a_resets_offset_by_chance_has_not_seen_it(broker: ServedBroker, member: FakeClient) -> None:
    """Messages that it has read before and not finished lie below that offset, and it would commit those."""
    reset(broker)
    assert pull(member, 10) == (ELSEWHERE, 10)
    assert (pull(member, 10)[0], pending(broker)) == (NOTHING, None)


def test_a_pull_sent_before_its_clients_heartbeat_shows_that_a_reset_was_seen(broker: ServedBroker) -> None:
    """The pull is answered once the leader is confirmed, when the heartbeat has come.

    Otherwise the client would read on, be told again with its next pull, and get everything from there once more.
    """
    member = broker.client("node-a/1")
    reset_to_3(broker)
    assert query(member) == 3
    sent = member.send(11, pull_ext("T1", offset=3, sysFlag="2", subscription="", subVersion="1"))
    assert not member.has_answer(sent)
    join(broker, "c1", "node-a/1")
    broker.settle()
    assert (member.answered(sent).code, pending(broker)) == (FOUND, None)


def test_only_a_confirmed_leader_sends_a_consumer_to_a_reset(broker: ServedBroker, member: FakeClient) -> None:
    """A leader that was stopped, and is deposed by now, may know an earlier reset only."""
    reset_to_3(broker)
    confirmations: list[Callable[[Exception | None], None]] = []
    broker.memory.node.read_index = confirmations.append  # type: ignore[method-assign]
    sent = member.send(11, pull_ext("T1", offset=10))
    broker.settle()
    assert not member.has_answer(sent)
    (confirm,) = confirmations
    confirm(None)
    broker.settle()
    answer = member.answered(sent)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ELSEWHERE, "3")


def test_a_held_pull_is_answered_by_a_reset(broker: ServedBroker, member: FakeClient) -> None:
    waiting = member.send(11, pull_ext("T1", offset=10, sysFlag="6", suspendTimeoutMillis="15000"))
    broker.settle()
    assert not member.has_answer(waiting)
    reset(broker, 0)
    assert member.answered(waiting).code == NOTHING
    assert pull(member, 10) == (ELSEWHERE, 0)


def test_commits_have_no_effect_until_the_reset_is_seen(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 8)
    reset_to_3(broker)
    assert (commit(broker, member, 9), committed(broker)) == (FOUND, 3)
    member.pull("T1", offset=9, sysFlag="5", commitOffset="9")
    broker.advance(1)
    assert committed(broker) == 3, "what a pull brings is a commit, too"
    # the commit was on its way when the pull was answered
    assert (commit(broker, member, 9), committed(broker)) == (FOUND, 3)
    pull(member, 3)
    assert (commit(broker, member, 5), committed(broker)) == (FOUND, 5)


def test_a_commit_that_waits_when_a_reset_comes_has_no_effect(broker: ServedBroker, member: FakeClient) -> None:
    member.send(COMMIT, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "9"})
    reset_to_3(broker)
    pull(member, 9)
    pull(member, 3)
    broker.advance(10)
    assert (committed(broker), pending(broker)) == (3, None)


@pytest.mark.parametrize("known", [True, False])
def test_a_previous_reader_cannot_commit_over_a_reset_before_its_query(broker: ServedBroker, known: bool) -> None:
    """The client that sees the reset may be unknown, and have the address of the previous reader."""
    before = join(broker, "c2", "node-a/2")
    reset_to_3(broker, seen_by=join(broker, "c1", "node-a/1") if known else broker.client("node-a/1"))
    assert (commit(broker, before, 9), committed(broker)) == (BUSY, 3)
    assert query(before) == 3
    assert (commit(broker, before, 4), committed(broker)) == (FOUND, 4)


def test_a_commit_delayed_at_another_node_does_not_undo_a_reset(broker: ServedBroker, member: FakeClient) -> None:
    reset_to_3(broker)
    pull(member, 9)
    pull(member, 3)
    late = broker.client("node-b/7")
    late.client_ids.add("c1")
    late.is_forwarded = True  # type: ignore[misc]
    assert (commit(broker, late, 9), committed(broker)) == (BUSY, 3)
    broker.advance(80)
    assert (commit(broker, late, 9), committed(broker)) == (FOUND, 9)


@pytest.mark.parametrize("shows", ["that it knows the offset", "that it is the member"])
def test_a_commit_over_a_connection_without_a_heartbeat_does_not_undo_a_reset(
    broker: ServedBroker, member: FakeClient, shows: str
) -> None:
    reset_to_3(broker, seen_by=member)
    unknown = broker.client("node-a/9")  # the address of the member that has seen it
    assert unknown.address.ip == member.address.ip
    assert (commit(broker, unknown, 9), committed(broker)) == (BUSY, 3)
    if shows == "that it is the member":
        unknown = join(broker, "c1", "node-a/9")
    else:
        assert query(unknown) == 3
    assert (commit(broker, unknown, 4), committed(broker)) == (FOUND, 4)


def test_a_commit_with_the_reset_flag_is_a_reset_and_a_later_reset_has_to_be_seen_again(
    broker: ServedBroker, member: FakeClient
) -> None:
    assert commit(broker, broker.client("tool/1"), 2, reset="true") == FOUND
    assert (pull(member, 9), pending(broker)) == ((ELSEWHERE, 2), 2)
    reset_to_3(broker)
    pull(member, 9)
    reset_to_3(broker)
    assert (pull(member, 3), pending(broker)) == ((ELSEWHERE, 3), 3)


def test_a_reset_to_a_trimmed_offset_leads_to_the_first_kept_message(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0)
    table = broker.memory.machine.state.table(RESETS)
    before = table.digest
    table.on_queue_trimmed("T1", 0, 4)
    assert (pending(broker), table.digest != before) == (4, True)
    assert pull(member, 0) == (ELSEWHERE, 4)


def test_a_reset_that_a_trim_has_overtaken_leads_to_the_first_kept_message(broker: ServedBroker) -> None:
    """A trim to 4 is in flight when the group is reset to 2, which is still kept."""
    machine = broker.memory.machine
    created = machine.state.topics["T1"].created_position
    machine.stage_command(TrimQueues(0, (("T1", created, 0, 4),)), lambda _: None)
    machine.stage_command(ResetOffsets("CG", (ResetRow("T1", created, 0, 2),)), lambda _: None)
    broker.settle()
    assert (pending(broker), committed(broker)) == (4, 4)


# ---------------------------------------------------------------- what members are told and asked


def test_members_get_a_reset_in_the_format_of_their_language(broker: ServedBroker, member: FakeClient) -> None:
    java = join(broker, "java", "node-a/3", LanguageCode.JAVA)
    cpp = join(broker, "cpp", "node-a/4", LanguageCode.CPP)
    reset_to_3(broker)
    broker.settle()
    assert asked(member) == []
    [(ext, body)] = asked(java)
    assert ext == {"topic": "T1", "group": "CG", "timestamp": "0", "isForce": "true", "queueId": "-1"}
    assert body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:3}}'
    [(_, body)] = asked(cpp)
    assert body == b'{"offsetTable":[{"brokerName":"broker-a","offset":3,"queueId":0,"topic":"T1"}]}'


def test_a_client_that_was_told_of_a_reset_has_time_before_its_pulls_are_redirected(broker: ServedBroker) -> None:
    java = join(broker, "java", "node-a/3", LanguageCode.JAVA)
    reset_to_3(broker)
    assert pull(java, 8) == (FOUND, 10)
    assert (commit(broker, java, 9), committed(broker)) == (FOUND, 3)
    broker.advance(SLOWNESS_S + 1)
    assert pull(java, 8) == (ELSEWHERE, 3)


def test_the_consumer_status_has_the_offsets_of_the_members(broker: ServedBroker, member: FakeClient) -> None:
    other, tool = join(broker, "c2", "node-a/2"), broker.client("tool/1")
    sent = submit(tool, STATUS, {"topic": "T1", "group": "CG"})
    assert asked(member, ASKED) == asked(other, ASKED) == [({"topic": "T1", "group": "CG"}, b"")]
    answer_status(member, encode_status({Q0: 7}))
    broker.advance(6)
    assert decode_statuses(tool.answered(sent).body) == {"c1": {Q0: 7}}


def answer_status(member: FakeClient, status: bytes) -> None:
    """Have a member answer the last request that it got."""
    answer = RemotingCommand(0, opaque=len(member.pushed), flag=1, body=status)
    member.broker.service.parts[Relay].take_answer(member.key, answer)


@pytest.mark.parametrize("status", [b"[", b'{"messageQueueTable":{"q":1}}', b" " * (MAX_STATUS_BYTES + 1)])
def test_a_member_whose_answer_cannot_be_read_is_left_out(
    broker: ServedBroker, member: FakeClient, status: bytes
) -> None:
    other, tool = join(broker, "c2", "node-a/2"), broker.client("tool/1")
    sent = submit(tool, STATUS, {"topic": "T1", "group": "CG"})
    answer_status(member, status)
    answer_status(other, encode_status({Q0: 7}))
    broker.settle()
    assert decode_statuses(tool.answered(sent).body) == {"c2": {Q0: 7}}


def test_the_consumer_status_of_a_group_without_members_is_refused(broker: ServedBroker) -> None:
    answer = broker.client("tool/1").call(STATUS, {"topic": "T1", "group": "CG"})
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [CG]")


# ---------------------------------------------------------------- copies


def clone(tool: FakeClient, topic: str = "", **fields: str) -> int:
    """Copy the offsets of the group to another group."""
    return submit(tool, CLONE, {"srcGroup": "CG", "destGroup": "copy", "topic": topic, **fields})


def test_the_offsets_of_a_group_can_be_copied_to_another_group(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 6)
    tool = broker.client("tool/1")
    assert tool.answered(clone(tool, offline="true")).code == FOUND
    assert broker.memory.machine.state.table(OFFSETS).get("copy", "T1", 0) == 6


@pytest.mark.parametrize("waits", [False, True])
def test_no_offsets_are_copied_to_a_group_being_deleted(broker: ServedBroker, member: FakeClient, waits: bool) -> None:
    """The copy comes after the deletion, or it comes before and waits for commits of other consumers."""
    broker.groups.put_group(SubscriptionGroupConfig("copy"), lambda _: None)
    commit(broker, member, 6)
    tool, offsets = broker.client("tool/1"), broker.memory.machine.state.table(OFFSETS)
    deletion = (DELETE_GROUP, {"groupName": "copy", "cleanOffset": "true"})
    if waits:
        member.send(COMMIT, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "7"})
    else:
        tool.send(*deletion)
    copy = tool.send(CLONE, {"srcGroup": "CG", "destGroup": "copy", "topic": "", "offline": "true"})
    if waits:
        tool.send(*deletion)
    broker.settle()
    assert_refused(tool.answered(copy), 1, "copy is being deleted")
    assert offsets.get("copy", "T1", 0) is None
    assert ("copy", "T1", 0) not in broker.memory.machine.state.table(RESETS).pending
    assert tool.call(CLONE, {"srcGroup": "CG", "destGroup": "copy", "topic": "", "offline": "true"}).code == FOUND


def test_a_copy_of_an_online_group_leaves_out_unsubscribed_topics(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 6)
    tool = broker.client("tool/1")
    assert [tool.answered(clone(tool, topic)).code for topic in ("T1", "T9")] == [FOUND, FOUND]
    assert broker.memory.machine.state.table(OFFSETS).pairs() == [("CG", "T1"), ("copy", "T1")]


def test_a_client_sees_a_reset_by_pulling_through_another_node(broker: ServedBroker) -> None:
    member = join(broker, "ours", "node-a/3", LanguageCode.PYTHON)
    elsewhere = broker.client("node-b/3")
    elsewhere.client_ids.add("ours")
    reset_to_3(broker)
    assert query(member) == 3
    assert (pull(elsewhere, 3), pending(broker)) == ((FOUND, 10), None)
    assert (commit(broker, member, 5), committed(broker)) == (FOUND, 5)


def test_a_reset_told_to_one_client_is_not_seen_by_another(broker: ServedBroker, member: FakeClient) -> None:
    other = join(broker, "c2", "node-a/2")
    reset(broker)
    assert pull(member, 4) == (ELSEWHERE, 10)
    assert (pull(other, 10), pending(broker)) == ((ELSEWHERE, 10), 10)


def test_a_commit_applied_during_a_pending_reset_has_no_effect(broker: ServedBroker) -> None:
    reset_to_3(broker)
    broker.memory.machine.stage_command(CommitOffsets(((*KEY, 9), ("CG", "T1", 1, 5))), lambda _: None)
    broker.settle()
    offsets = broker.memory.machine.state.table(OFFSETS)
    assert (committed(broker), offsets.get("CG", "T1", 1)) == (3, 5)
    assert offsets.recent.of(KEY, broker.memory.env.now()) == ()


def test_pulls_are_not_redirected_again_while_the_seen_reset_is_being_recorded(
    broker: ServedBroker, member: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset_to_3(broker)
    assert pull(member, 9) == (ELSEWHERE, 3)
    node = broker.memory.node
    commit_staged = node.commit
    monkeypatch.setattr(node, "commit", lambda: None)
    assert pull(member, 3) == (FOUND, 10)
    assert pending(broker) == 3, "no majority has it that this was seen"
    assert pull(member, 7) == (FOUND, 10)
    commit_staged()
    broker.settle()
    assert pending(broker) is None
