"""Promises to consumer groups about their offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext

from dledger_broker.features.offsets import requests
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer, RecentCommit
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.requests import Request, read_request
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header

KEY = ("CG", "T1", 0)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return make_broker().put_group()


class Consumer(FakeClient):
    """Client's channel. It commits offsets of T1/0 for group CG."""

    def commit(self, offset: int, **fields: str) -> int:
        """Send a commit, and return its opaque."""
        return self.send(15, offset_ext(offset, **fields))

    def commit_and_check(self, offset: int) -> None:
        """Commit an offset, and see it committed."""
        self.commit(offset)
        assert self.committed() == offset

    def committed(self) -> int:
        """Return the committed offset, once the commits before it are in the log."""
        answer = self.call(14, offset_ext())
        assert answer.code == 0
        return int(answer.ext["offset"])

    def pull_and_commit(self, offset: int, **fields: str) -> RemotingCommand:
        """Pull, with an offset that is committed."""
        return self.pull("T1", sysFlag="5", commitOffset=str(offset), **fields)

    def through(self, key: str, *client_ids: str) -> Consumer:
        """Return a client's channel through another node."""
        passed_on = Consumer(self.broker, key)
        passed_on.is_forwarded = True
        passed_on.client_ids = set(client_ids)
        return passed_on


@pytest.fixture
def client(broker: ServedBroker) -> Consumer:
    return Consumer(broker)


def offset_ext(offset: int | None = None, **fields: str) -> dict[str, str]:
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", **fields}
    return ext if offset is None else {**ext, "commitOffset": str(offset)}


def applied(broker: ServedBroker, group: str = "CG") -> int | None:
    """Return the offset in the applied state."""
    return broker.table(OFFSETS).get(group, "T1", 0)


def test_a_commit_to_a_queue_that_its_topic_has_lost_is_kept(broker: ServedBroker, client: Consumer) -> None:
    """A topic may lose queues and get them back a moment later. Messages consumed meanwhile must not come again."""
    client.send_message("T1", queue_id=3)
    broker.memory.create_topic("T1", 1)
    client.commit(1, queueId="3")
    broker.advance(1)
    broker.memory.create_topic("T1", 4)
    assert client.call(14, offset_ext(queueId="3")).ext["offset"] == "1"


@pytest.mark.parametrize("name", ["CID_RMQ_SYS_" + "x" * 200, "CID_RMQ_SYS_ \u00e9"])
def test_an_uncreated_system_group_needs_a_valid_name(broker: ServedBroker, client: Consumer, name: str) -> None:
    """The commits of a client go into the log together with those of all other clients."""
    assert client.call(15, offset_ext(1, consumerGroup=name)).code == 29
    assert client.pull_and_commit(4, consumerGroup=name).code == 29
    broker.advance(1)
    assert broker.table(OFFSETS).pairs() == []


def test_groups_that_nobody_creates_and_that_have_offsets_are_limited(
    broker: ServedBroker, client: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits on groups do not count them, and each has a place in the state of every node."""
    monkeypatch.setattr(requests, "MAX_SYSTEM_GROUPS", 2)
    table, (first, second, third) = broker.table(OFFSETS), (f"CID_RMQ_SYS_{number}" for number in range(3))
    for name in (first, second):
        client.commit(1, consumerGroup=name)
    broker.advance(1)
    assert client.call(15, offset_ext(1, consumerGroup=third)).code == 16
    assert client.pull_and_commit(4, consumerGroup=third).code == 19
    client.commit(2, consumerGroup=second)
    broker.advance(1)
    assert (len(table.pairs()), applied(broker, second)) == (2, 2)
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    client.commit(1, consumerGroup=third)
    broker.advance(1)
    assert dict(table.system_groups) == {third: 1}


def test_a_new_group_on_a_young_topic_starts_at_the_beginning(client: Consumer) -> None:
    """This holds for an empty topic too: its first message may arrive before the group asks where the queue ends."""
    for _ in range(2):
        assert client.committed() == 0
        assert client.call(14, offset_ext(setZeroIfNotFound="false")).code == 22
        client.send_message("T1")
    assert client.call(14, offset_ext(queueId="99")).code == 22


def test_a_new_group_starts_at_the_beginning_while_a_deletion_of_the_topic_is_in_flight(client: Consumer) -> None:
    """The topic may never be deleted, because its leader may be deposed. The group would skip its messages."""
    client.send_message("T1")
    opaque = client.send(14, offset_ext())
    client.broker.memory.machine.proposals.delete_topic("T1", lambda _: None)
    client.broker.settle()
    answer = client.answered(opaque)
    assert (answer.code, answer.ext.get("offset")) == (0, "0")


def test_a_pull_that_waits_for_a_confirmation_commits_only_once(broker: ServedBroker, client: Consumer) -> None:
    pull = client.send(11, pull_ext("T1", offset=99, sysFlag="5", commitOffset="4"))
    client.send(15, offset_ext(7), oneway=True)
    broker.settle()
    assert client.answered(pull).code == 21
    assert client.committed() == 7


def test_answers_that_must_not_be_stale_wait_for_a_majority(broker: ServedBroker, client: Consumer) -> None:
    opaques = [
        client.send(RequestCode.QUERY_CONSUMER_OFFSET, offset_ext()),
        client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T1", "queueId": "0"}),
        client.send(RequestCode.GET_TOPIC_CONFIG, {"topic": "Unknown"}),
        client.send(RequestCode.PULL_MESSAGE, {"topic": "Unknown"}),
    ]
    assert [client.has_answer(opaque) for opaque in opaques] == [False, False, False, True]
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [0, 0, 17, 1]


@pytest.mark.parametrize(
    ("code", "more"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "CG"}),
        (RequestCode.GET_MAX_OFFSET, {}),
        (RequestCode.GET_MIN_OFFSET, {}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "1"}),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, {}),
        (RequestCode.GET_TOPIC_CONFIG, {}),
    ],
)
def test_a_leader_that_no_majority_confirms_answers_no_question_that_must_not_be_stale(
    broker: ServedBroker, client: Consumer, monkeypatch: pytest.MonkeyPatch, code: RequestCode, more: dict[str, str]
) -> None:
    waiting: list[Callable[[Exception | None], None]] = []
    monkeypatch.setattr(broker.memory.node, "read_index", waiting.append)
    opaque = client.send(code, {"topic": "T1", "queueId": "0", **more})
    broker.settle()
    assert not client.has_answer(opaque), "a deposed leader would answer the same"
    assert len(waiting) == 1


# ---- a commit that took a longer way


def change_leaders(broker: ServedBroker) -> None:
    """Depose this node, which forgets what it did not apply, and let it lead again a second later."""
    broker.memory.node.step_down()
    broker.advance(1)
    broker.memory.node.lead()
    broker.settle()


def test_a_lower_commit_through_the_same_follower_counts_right_after_a_failover(client: Consumer) -> None:
    passed_on = client.through("follower/1", "c1")
    passed_on.commit(120)
    assert client.committed() == 120
    change_leaders(client.broker)
    opaque = passed_on.commit(100)
    assert client.committed() == 100
    assert passed_on.answered(opaque).code == ResponseCode.SUCCESS


def test_a_lower_commit_of_another_client_counts_right_after_a_failover(client: Consumer) -> None:
    """A tool that resets a group through a follower is another client than the client that committed."""
    client.through("follower/1", "consumer").commit_and_check(120)
    change_leaders(client.broker)
    client.through("follower/2", "tool").commit_and_check(100)


def test_a_new_leader_ignores_a_commit_that_was_overtaken_at_an_earlier_leader(client: Consumer) -> None:
    """An earlier leader commits 120, and the new leader is forwarded 100, which a follower held meanwhile."""
    client.client_ids = {"c1"}
    client.commit_and_check(120)
    change_leaders(client.broker)
    passed_on = client.through("follower/1", "c1")
    late = passed_on.commit(100)
    assert client.committed() == 120
    assert passed_on.answered(late).code == ResponseCode.SUCCESS
    client.broker.advance(LATE_COMMIT_S + 1)
    passed_on.commit_and_check(80)


def test_a_commit_repeated_through_another_channel_overtakes_an_earlier_commit_in_flight(client: Consumer) -> None:
    """A node holds up 100. The client repeats 120 through another node, and the leader changes."""
    first, second = (client.through(key, "c1") for key in ("one/1", "two/1"))
    first.commit_and_check(120)
    second.commit(120)
    client.broker.advance(1)
    change_leaders(client.broker)
    first.commit(100)
    assert client.committed() == 120
    entries = len(client.broker.memory.log.entries)
    second.commit(120)
    client.broker.advance(1)
    assert len(client.broker.memory.log.entries) == entries


def test_a_late_commit_is_recognized_after_commits_of_another_client(client: Consumer) -> None:
    """A queue goes from one consumer to the next. Commits that the first sent earlier must not come back."""
    client.through("one/1", "c1").commit_and_check(120)
    client.through("two/1", "c2").commit_and_check(130)
    client.through("three/1", "c1").commit(100)
    assert client.committed() == 130


def test_a_new_leader_refuses_a_lower_commit_after_commits_of_an_earlier_version(client: Consumer) -> None:
    """It may have been overtaken at a leader of an earlier version, which did not record the committer."""
    client.broker.offsets.commit(*KEY, 120)
    assert client.committed() == 120
    change_leaders(client.broker)
    passed_on = client.through("follower/1", "c1")
    assert passed_on.call(15, offset_ext(100)).code == ResponseCode.SYSTEM_BUSY
    assert client.committed() == 120
    passed_on.commit_and_check(130)
    client.commit_and_check(90)


def test_a_lower_commit_is_taken_a_while_after_a_commit_of_an_earlier_version(client: Consumer) -> None:
    client.broker.offsets.commit(*KEY, 120)
    assert client.committed() == 120
    client.broker.advance(LATE_COMMIT_S + 1)
    client.through("follower/1", "c1").commit_and_check(100)


def test_a_pull_that_was_passed_on_commits_nothing(client: Consumer) -> None:
    """The node that first received the pull has forwarded its commit. Later commits of the channel may be ahead."""
    client.commit_and_check(120)
    passed_on = client.through("client/2")
    passed_on.commit_and_check(130)
    passed_on.pull_and_commit(125)
    assert client.committed() == 130


def test_a_commit_that_waited_for_a_majority_undoes_no_newer_commit(
    broker: ServedBroker, client: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 comes for a group that is not known here, and waits. The group is made, and 120 is taken at once."""
    waiting: list[Callable[[Exception | None], None]] = []
    monkeypatch.setattr(broker.memory.node, "read_index", waiting.append)
    late = client.commit(100, consumerGroup="New")
    broker.put_group("New")
    broker.advance(0.1)
    newer = client.commit(120, consumerGroup="New")
    waiting.pop()(None)
    broker.advance(1)
    assert [client.answered(opaque).code for opaque in (late, newer)] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert applied(broker, "New") == 120


def test_the_commit_of_a_pull_takes_effect_after_earlier_requests_of_its_channel(client: Consumer) -> None:
    """The node has forwarded a request, and leads since. Commit 100 waits for the answer, and a pull brings 120."""
    client.forwards, client.forwards_sent = 1, {1}
    waiting = client.commit(100)
    client.pull_and_commit(120)
    client.broker.advance(1)
    assert applied(client.broker) is None
    client.forwards, client.forwards_sent = client.forwards - 1, set()
    client.broker.advance(1)
    assert client.answered(waiting).code == ResponseCode.SUCCESS
    assert client.committed() == 120


def test_a_waiting_commit_undoes_no_commit_of_another_leader_when_its_node_leads_again(
    broker: ServedBroker, client: Consumer
) -> None:
    """A node takes 100 and is deposed. Another leader takes 120. The node leads again, where 100 waits."""
    client.commit_and_check(90)
    late = client.commit(100)
    broker.memory.node.step_down()
    broker.advance(0.1)
    table, now = broker.table(OFFSETS), broker.memory.env.now()
    table.commit(*KEY, 120)
    table.recent.note(KEY, RecentCommit(120, Committer.of("elsewhere/1", (), client.address.ip), now))
    broker.memory.node.lead()
    broker.advance(1)
    assert client.answered(late).code == ResponseCode.SUCCESS
    assert applied(broker) == 120


def test_an_overtaken_commit_is_answered_when_the_higher_commit_is_applied(client: Consumer) -> None:
    client.commit(120)
    passed_on = client.through("client/2")
    late = passed_on.commit(100)
    assert not passed_on.has_answer(late)
    client.broker.settle()
    assert passed_on.answered(late).code == ResponseCode.SUCCESS
    assert applied(client.broker) == 120


def test_an_overtaken_commit_fails_together_with_the_higher_commit(client: Consumer) -> None:
    """The leader that took both is deposed before either is in the log, so neither may be acknowledged."""
    client.commit(120)
    passed_on = client.through("client/2")
    late = passed_on.commit(100)
    client.broker.memory.node.step_down()
    client.broker.settle()
    assert passed_on.answered(late).code != ResponseCode.SUCCESS


def test_a_commit_is_taken_if_the_higher_commit_was_lost(broker: ServedBroker, client: Consumer) -> None:
    """120 is taken, and lost with the leadership. The node leads again and is forwarded 100."""
    client.commit_and_check(90)
    client.send(15, offset_ext(120), oneway=True)
    broker.lead_anew()
    broker.advance(1)
    client.through("client/2").commit_and_check(100)


def test_a_commit_returned_by_a_deposed_leader_undoes_no_newer_commit(broker: ServedBroker, client: Consumer) -> None:
    """The node forwards 100, leads, and takes 120 of the same client. The previous leader gives 100 back."""
    command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, opaque=77, ext=offset_ext(100))
    held = read_request(client, 0, encode_json_header(command), b"", broker.memory.env.now())
    assert held is not None
    held.sequence = 1
    newer = Consumer(broker, "client/2")
    newer.commit(120)
    client.in_flight += 1
    broker.service.requests.run(held)
    broker.advance(1)
    assert client.answered(77).code == ResponseCode.SUCCESS
    assert newer.committed() == 120


def test_a_commit_of_a_pull_at_a_follower_is_in_flight_until_the_leader_answers(
    broker: ServedBroker, client: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be settled without having been counted, and `max_in_flight` would hold no client."""
    monkeypatch.setattr(broker.group, "ready", False)
    monkeypatch.setattr(broker.group, "leader_id", "n2")
    passed_on: list[Request] = []
    monkeypatch.setattr(broker.service.requests._forwarder, "pass_on", passed_on.append)
    client.pull_and_commit(1)
    assert [request.code for request in passed_on] == [RequestCode.UPDATE_CONSUMER_OFFSET]
    assert client.in_flight == 1
    passed_on[0].respond()
    assert client.in_flight == 0
