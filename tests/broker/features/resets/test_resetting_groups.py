"""Resets of groups whose consumers pull: where they go on, and which commits count meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext

from dledger_broker.clients.relay import Relay
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.resets.changes import committer
from dledger_broker.features.resets.consumers import MAX_STATUS_BYTES, SLOWNESS_S
from dledger_broker.features.resets.table import RESETS, ResetOffsets, ResetRow
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.resets import decode_reset, decode_statuses, encode_status
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig

RESET, CLONE, STATUS, TOLD, ASKED = 222, 314, 223, 220, 221
QUERY, COMMIT = 14, 15
DELETE_GROUP, DELETE_TOPIC = 207, 215
FOUND, NOTHING, ELSEWHERE, BUSY = 0, 19, 21, 2
KEY = ("CG", "T1", 0)
Q0 = MessageQueue("broker-a", 0, "T1")


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    broker = make_broker()
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()
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
    """A member of the group, which understands no requests unless its language says otherwise."""
    client = broker.client(channel)
    consumer = ConsumerData("CG", subscription_data_set=[SubscriptionData("T1", "*", sub_version=1)])
    local = broker.service.gossip.local
    local.heartbeat(client, HeartbeatData(client_id, [], [consumer]), language, 479, broker.memory.env.now())
    return client


def reset(broker: ServedBroker, timestamp: int = -1, *, force: bool = True, group: str = "CG", **fields: str) -> int:
    ext = {"topic": "T1", "group": group, "timestamp": str(timestamp), "isForce": str(force).lower(), **fields}
    answer = broker.client("tool/1").call_from_disk(RESET, ext)
    return decode_reset(answer.body)[Q0] if answer.code == FOUND else -answer.code


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
    """Requests of a code that a client got from the broker."""
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
def test_a_group_goes_on_at_a_time_at_the_end_or_at_an_offset(
    broker: ServedBroker, timestamp: int, fields: dict[str, str], expected: int
) -> None:
    assert reset(broker, timestamp, **fields) == expected
    assert committed(broker) == (expected if expected >= 0 else None)


def test_without_force_a_group_goes_back_only(broker: ServedBroker, member: FakeClient) -> None:
    assert commit(broker, member, 6) == FOUND
    assert [reset(broker, -1, force=False), reset(broker, 0, force=False)] == [6, 0]


def test_a_group_or_topic_that_is_not_there_is_refused(broker: ServedBroker) -> None:
    assert reset(broker, group="other") == -26
    ext = {"topic": "T9", "group": "CG", "timestamp": "-1", "isForce": "true"}
    assert broker.client("tool/1").call(RESET, ext).code == 17


def reset_before(broker: ServedBroker, code: int, ext: dict[str, str]) -> RemotingCommand:
    """Answer of a reset that is asked for just before something is deleted, and goes on while that is in flight."""
    tool = broker.client("tool/1")

    async def scenario() -> int:
        asked = tool.send(RESET, {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true"})
        tool.send(code, ext)
        await asyncio.sleep(0)  # the reset goes on, and nothing is applied yet
        return asked

    opaque = asyncio.run(scenario())
    broker.settle()
    return tool.answered(opaque)


def test_no_reset_slips_in_behind_the_deletion_of_its_group(broker: ServedBroker) -> None:
    answer = reset_before(broker, DELETE_GROUP, {"groupName": "CG", "cleanOffset": "true"})
    assert (answer.code, "CG" in (answer.remark or "")) == (26, True)
    assert (committed(broker), pending(broker)) == (None, None)


def test_no_reset_slips_in_behind_the_deletion_of_its_topic(broker: ServedBroker) -> None:
    answer = reset_before(broker, DELETE_TOPIC, {"topic": "T1"})
    assert (answer.code, "T1" in (answer.remark or "")) == (17, True)
    assert (committed(broker), pending(broker)) == (None, None)


# ---------------------------------------------------------------- consumers


def test_a_consumer_is_told_by_its_next_pull_and_by_a_query(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    assert pull(member, 10) == (ELSEWHERE, 3)
    assert pull(member, 3) == (FOUND, 10)
    assert pending(broker) is None


def test_a_consumer_that_stands_there_by_chance_has_not_seen_it(broker: ServedBroker, member: FakeClient) -> None:
    """What it has read before and not finished lies below: it would commit that."""
    reset(broker)
    assert pull(member, 10) == (ELSEWHERE, 10)
    assert (pull(member, 10)[0], pending(broker)) == (NOTHING, None)


def test_a_pull_that_came_before_its_clients_heartbeat_shows_that_a_reset_was_seen(broker: ServedBroker) -> None:
    """It is refused at first, and answered once the leader is confirmed, when the heartbeat has come.

    Else the client read on, was told again with its next pull, and got everything from there once more.
    """
    member = broker.client("node-a/1")
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    sent = member.send(11, pull_ext("T1", offset=3, sysFlag="2", subscription="", subVersion="1"))
    assert not member.has_answer(sent)
    join(broker, "c1", "node-a/1")
    broker.settle()
    assert (member.answered(sent).code, pending(broker)) == (FOUND, None)


def test_a_pull_that_waits_is_answered(broker: ServedBroker, member: FakeClient) -> None:
    waiting = member.send(11, _long_poll())
    broker.settle()
    assert not member.has_answer(waiting)
    reset(broker, 0)
    assert member.answered(waiting).code == NOTHING
    assert pull(member, 10) == (ELSEWHERE, 0)


def _long_poll() -> dict[str, str]:
    return {
        "consumerGroup": "CG",
        "topic": "T1",
        "queueId": "0",
        "queueOffset": "10",
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
    }


def test_a_commit_from_before_has_no_effect_until_the_reset_is_seen(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 8)
    reset(broker, 0, queueId="0", offset="3")
    assert (commit(broker, member, 9), committed(broker)) == (FOUND, 3)
    pull(member, 9)
    assert (commit(broker, member, 9), committed(broker)) == (FOUND, 3)  # on its way when the pull was answered
    pull(member, 3)
    assert (commit(broker, member, 5), committed(broker)) == (FOUND, 5)


def test_a_commit_that_waits_when_the_reset_comes_does_not_follow_it(broker: ServedBroker, member: FakeClient) -> None:
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "9"}
    member.send(COMMIT, ext)
    reset(broker, 0, queueId="0", offset="3")
    pull(member, 9)
    pull(member, 3)
    broker.advance(10)
    assert (committed(broker), pending(broker)) == (3, None)


def test_a_pull_commits_nothing_over_it(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0, queueId="0", offset="3")
    member.pull("T1", offset=9, sysFlag="5", commitOffset="9")
    broker.advance(1)
    assert committed(broker) == 3


def test_who_had_the_queue_before_commits_nothing_over_it_until_it_asks(
    broker: ServedBroker, member: FakeClient
) -> None:
    before = join(broker, "c2", "node-a/2")
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    pull(member, 3)
    assert pending(broker) is None
    assert (commit(broker, before, 9), committed(broker)) == (BUSY, 3)
    assert query(before) == 3
    assert (commit(broker, before, 4), committed(broker)) == (FOUND, 4)


def test_a_commit_that_another_node_held_up_does_not_undo_it(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0, queueId="0", offset="3")
    pull(member, 9)
    pull(member, 3)
    late = broker.client("node-b/7")
    late.client_ids.add("c1")
    late.is_forwarded = True  # type: ignore[misc]
    assert (commit(broker, late, 9), committed(broker)) == (BUSY, 3)
    broker.advance(80)
    assert (commit(broker, late, 9), committed(broker)) == (FOUND, 9)


def test_a_commit_over_a_connection_without_a_heartbeat_does_not_undo_it(
    broker: ServedBroker, member: FakeClient
) -> None:
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    pull(member, 3)
    unknown = broker.client("node-a/9")  # the address of the member that has seen it
    assert unknown.address.ip == member.address.ip
    assert (commit(broker, unknown, 9), committed(broker)) == (BUSY, 3)
    assert query(unknown) == 3
    assert (commit(broker, unknown, 4), committed(broker)) == (FOUND, 4)


def test_who_has_seen_it_commits_over_a_new_connection_once_it_is_known_there(
    broker: ServedBroker, member: FakeClient
) -> None:
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    pull(member, 3)
    again = broker.client("node-a/9")
    assert (commit(broker, again, 5), committed(broker)) == (BUSY, 3)
    again = join(broker, "c1", "node-a/9")
    assert (commit(broker, again, 5), committed(broker)) == (FOUND, 5)


def test_a_known_client_is_not_taken_for_an_unknown_one_that_saw_it_at_its_address(broker: ServedBroker) -> None:
    before = join(broker, "c2", "node-a/2")
    unknown = broker.client("node-a/1")
    reset(broker, 0, queueId="0", offset="3")
    assert query(unknown) == 3
    pull(unknown, 3)
    assert pending(broker) is None
    assert (commit(broker, before, 9), committed(broker)) == (BUSY, 3)


def test_a_later_reset_is_seen_anew(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0, queueId="0", offset="3")
    pull(member, 9)
    reset(broker, 0, queueId="0", offset="3")
    assert pull(member, 3) == (ELSEWHERE, 3)
    assert pending(broker) == 3


def test_what_a_tool_commits_as_a_reset_is_one(broker: ServedBroker, member: FakeClient) -> None:
    assert commit(broker, broker.client("tool/1"), 2, reset="true") == FOUND
    assert (pull(member, 9), pending(broker)) == ((ELSEWHERE, 2), 2)


def test_a_reset_below_what_is_kept_leads_to_the_first_kept_message(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker, 0)
    table = broker.memory.machine.state.table(RESETS)
    before = table.digest
    table.on_queue_trimmed("T1", 0, 4)
    assert (pending(broker), table.digest != before) == (4, True)
    assert pull(member, 0) == (ELSEWHERE, 4)


def test_a_reset_that_a_trim_has_overtaken_leads_to_the_first_kept_message(broker: ServedBroker) -> None:
    """1. a trim to 4 is in flight; 2. the group is reset to 2, which is kept; 3. both are applied, in that order."""
    machine = broker.memory.machine
    created = machine.state.topics["T1"].created_position
    machine.stage_command(TrimQueues(0, (("T1", created, 0, 4),)), lambda _: None)
    machine.stage_command(ResetOffsets("CG", (ResetRow("T1", created, 0, 2),)), lambda _: None)
    broker.settle()
    assert (pending(broker), committed(broker)) == (4, 4)


# ---------------------------------------------------------------- what members are told and asked


def test_members_that_understand_it_are_told_each_in_its_own_way(broker: ServedBroker, member: FakeClient) -> None:
    java = join(broker, "java", "node-a/3", LanguageCode.JAVA)
    cpp = join(broker, "cpp", "node-a/4", LanguageCode.CPP)
    reset(broker, 0, queueId="0", offset="3")
    broker.settle()
    assert asked(member) == []
    assert [bodies for _, bodies in asked(java)] == [
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:3}}'
    ]
    assert [bodies for _, bodies in asked(cpp)] == [
        b'{"offsetTable":[{"brokerName":"broker-a","offset":3,"queueId":0,"topic":"T1"}]}'
    ]
    assert asked(java)[0][0] == {"topic": "T1", "group": "CG", "timestamp": "0", "isForce": "true", "queueId": "-1"}


def test_a_client_that_drops_what_it_has_slowly_is_not_told_twice(broker: ServedBroker) -> None:
    java = join(broker, "java", "node-a/3", LanguageCode.JAVA)
    reset(broker, 0, queueId="0", offset="3")
    assert pull(java, 8) == (FOUND, 10)
    assert (commit(broker, java, 9), committed(broker)) == (FOUND, 3)
    broker.advance(SLOWNESS_S + 1)
    assert pull(java, 8) == (ELSEWHERE, 3)


def test_members_say_where_they_are(broker: ServedBroker, member: FakeClient) -> None:
    other = join(broker, "c2", "node-a/2")
    tool = broker.client("tool/1")
    sent = tool.send(STATUS, {"topic": "T1", "group": "CG"})
    broker.settle()
    assert asked(member, ASKED) == asked(other, ASKED) == [({"topic": "T1", "group": "CG"}, b"")]
    answer = RemotingCommand(0, opaque=len(member.pushed), flag=1, body=encode_status({Q0: 7}))
    broker.service.parts[Relay].take_answer(member.key, answer)
    broker.advance(6)
    assert decode_statuses(tool.answered(sent).body) == {"c1": {Q0: 7}}


@pytest.mark.parametrize("status", [b"[", b'{"messageQueueTable":{"q":1}}', b" " * (MAX_STATUS_BYTES + 1)])
def test_a_member_whose_answer_cannot_be_read_is_left_out(
    broker: ServedBroker, member: FakeClient, status: bytes
) -> None:
    other = join(broker, "c2", "node-a/2")
    tool = broker.client("tool/1")
    sent = tool.send(STATUS, {"topic": "T1", "group": "CG"})
    broker.settle()
    relay = broker.service.parts[Relay]
    relay.take_answer(member.key, RemotingCommand(0, opaque=len(member.pushed), flag=1, body=status))
    relay.take_answer(other.key, RemotingCommand(0, opaque=len(other.pushed), flag=1, body=encode_status({Q0: 7})))
    broker.settle()
    assert decode_statuses(tool.answered(sent).body) == {"c2": {Q0: 7}}


def test_a_group_without_members_says_so(broker: ServedBroker) -> None:
    answer = broker.client("tool/1").call(STATUS, {"topic": "T1", "group": "CG"})
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [CG]")


# ---------------------------------------------------------------- copies


def test_a_group_goes_on_where_another_one_is(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 6)
    clone = {"srcGroup": "CG", "destGroup": "copy", "topic": "", "offline": "true"}
    assert broker.client("tool/1").call(CLONE, clone).code == FOUND
    assert broker.memory.machine.state.table(OFFSETS).get("copy", "T1", 0) == 6


@pytest.mark.parametrize("waits", [False, True])
def test_no_copy_slips_in_behind_the_deletion_of_the_group_it_is_for(
    broker: ServedBroker, member: FakeClient, waits: bool
) -> None:
    """Be it that the copy comes after the deletion, or before it and waits for commits of other consumers."""
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
    answer = tool.answered(copy)
    assert (answer.code, "copy is being deleted" in (answer.remark or "")) == (1, True)
    assert offsets.get("copy", "T1", 0) is None
    assert ("copy", "T1", 0) not in broker.memory.machine.state.table(RESETS).pending
    assert tool.call(CLONE, {"srcGroup": "CG", "destGroup": "copy", "topic": "", "offline": "true"}).code == FOUND


def test_a_copy_of_a_live_group_leaves_out_what_nobody_subscribes_to(broker: ServedBroker, member: FakeClient) -> None:
    commit(broker, member, 6)
    for topic in ("T1", "T9"):
        clone = {"srcGroup": "CG", "destGroup": "copy", "topic": topic}
        assert broker.client("tool/1").call(CLONE, clone).code == FOUND
    assert broker.memory.machine.state.table(OFFSETS).pairs() == [("CG", "T1"), ("copy", "T1")]


def test_who_saw_a_reset_is_named(broker: ServedBroker, member: FakeClient) -> None:
    reset(broker)
    pull(member, 9)
    pull(member, 10)
    seen = broker.memory.machine.state.table(RESETS).seen(KEY, broker.memory.env.now())
    assert seen is not None
    assert seen.by == committer(member)


def test_a_client_may_pull_through_another_node_than_it_asks_and_commits(broker: ServedBroker) -> None:
    member = join(broker, "ours", "node-a/3", LanguageCode.PYTHON)
    elsewhere = broker.client("node-b/3")
    elsewhere.client_ids.add("ours")
    reset(broker, 0, queueId="0", offset="3")
    assert query(member) == 3
    assert (pull(elsewhere, 3), pending(broker)) == ((FOUND, 10), None)
    assert (commit(broker, member, 5), committed(broker)) == (FOUND, 5)


def test_that_another_client_was_told_says_nothing_of_one_that_stands_there_by_chance(
    broker: ServedBroker, member: FakeClient
) -> None:
    other = join(broker, "c2", "node-a/2")
    reset(broker)
    assert pull(member, 4) == (ELSEWHERE, 10)
    assert (pull(other, 10), pending(broker)) == ((ELSEWHERE, 10), 10)


def test_what_is_committed_behind_a_pending_reset_has_no_effect_on_any_replica(broker: ServedBroker) -> None:
    reset(broker, 0, queueId="0", offset="3")
    broker.memory.machine.stage_command(CommitOffsets(((*KEY, 9), ("CG", "T1", 1, 5))), lambda _: None)
    broker.settle()
    offsets = broker.memory.machine.state.table(OFFSETS)
    assert (committed(broker), offsets.get("CG", "T1", 1)) == (3, 5)
    assert offsets.recent.of(KEY, broker.memory.env.now()) == ()


def test_pulls_that_come_before_it_is_applied_that_a_reset_was_seen_are_not_sent_back_again(
    broker: ServedBroker, member: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset(broker, 0, queueId="0", offset="3")
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
