"""Promises to consumer groups about their offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext

from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer, Taken
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.requests import Request, read_request
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.topics import SubscriptionGroupConfig

KEY = ("CG", "T1", 0)


@pytest.fixture(autouse=True)
def group(broker: ServedBroker) -> None:
    broker.groups.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
    broker.settle()


def offset_ext(offset: int | None = None, queue_id: int = 0, **fields: str) -> dict[str, str]:
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": str(queue_id), **fields}
    return ext if offset is None else {**ext, "commitOffset": str(offset)}


def committed(client: FakeClient) -> str:
    answer = client.call(14, offset_ext())
    assert answer.code == 0
    return answer.ext["offset"]


def test_a_commit_is_answered_once_it_is_applied(broker: ServedBroker, client: FakeClient) -> None:
    opaque = client.send(15, offset_ext(5))
    broker.settle()
    assert not client.has_answer(opaque)
    broker.advance(broker.config.offset_flush_ms / 1000)
    assert client.answered(opaque).code == 0
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) == 5


def test_a_query_sees_commits_that_are_still_buffered(client: FakeClient) -> None:
    client.send(15, offset_ext(7))
    assert committed(client) == "7"


def test_a_commit_may_go_back(client: FakeClient) -> None:
    client.send(15, offset_ext(7))
    client.send(15, offset_ext(3))
    assert committed(client) == "3"


def test_a_negative_commit_changes_nothing_and_is_answered_zero(client: FakeClient) -> None:
    client.send(15, offset_ext(7))
    assert client.call(15, offset_ext(-1)).code == 0
    assert committed(client) == "7"


def test_a_repeated_commit_of_an_idle_consumer_writes_nothing(broker: ServedBroker, client: FakeClient) -> None:
    client.send(15, offset_ext(7))
    committed(client)
    entries = len(broker.memory.log.entries)
    assert client.call(15, offset_ext(7)).code == 0
    broker.advance(1)
    assert len(broker.memory.log.entries) == entries


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"consumerGroup": "Unknown"}, 26), ({"topic": "Unknown"}, 17), ({"queueId": "4"}, 29), ({"queueId": ""}, 1)],
)
def test_a_bad_commit_is_refused(client: FakeClient, fields: dict[str, str], code: int) -> None:
    assert client.call(15, {**offset_ext(1), **fields}).code == code


def test_a_consumer_finishes_the_messages_of_a_queue_that_its_topic_has_no_longer(
    broker: ServedBroker, client: FakeClient
) -> None:
    """Fewer queues, and as many as before a moment later: what was consumed meanwhile must not come again."""
    client.send_message("T1", queue_id=3)
    broker.memory.create_topic("T1", 1)
    client.send(15, offset_ext(1, queue_id=3))
    broker.advance(1)
    broker.memory.create_topic("T1", 4)
    assert client.call(14, offset_ext(queue_id=3)).ext["offset"] == "1"


@pytest.mark.parametrize("name", ["CID_RMQ_SYS_" + "x" * 200, "CID_RMQ_SYS_ \u00e9"])
def test_a_group_that_needs_no_creating_needs_a_groups_name(
    broker: ServedBroker, client: FakeClient, name: str
) -> None:
    """What one client commits goes into the log together with what all others do."""
    assert client.call(15, offset_ext(1, consumerGroup=name)).code == 29
    assert client.pull("T1", consumerGroup=name, sysFlag="5", commitOffset="4").code == 29
    broker.advance(1)
    assert broker.memory.machine.state.table(OFFSETS).pairs() == []


def test_a_new_group_on_a_young_topic_starts_at_the_beginning(client: FakeClient) -> None:
    assert client.call(14, offset_ext()).code == 22
    client.send_message("T1")
    assert committed(client) == "0"
    assert client.call(14, offset_ext(setZeroIfNotFound="false")).code == 22


def test_a_pull_commits_the_offset_that_it_carries(client: FakeClient) -> None:
    client.pull("T1", sysFlag="5", commitOffset="4")
    assert committed(client) == "4"
    client.pull("T1", sysFlag="4", commitOffset="9")
    assert committed(client) == "4"


def test_a_pull_that_is_confirmed_first_does_not_commit_again(broker: ServedBroker, client: FakeClient) -> None:
    pull = client.send(11, pull_ext("T1", offset=99, sysFlag="5", commitOffset="4"))
    client.send(15, offset_ext(7), oneway=True)
    broker.settle()
    assert client.answered(pull).code == 21
    assert committed(client) == "7"


def test_offsets_and_times_of_a_queue(broker: ServedBroker, client: FakeClient) -> None:
    def ask(code: int, **fields: str) -> dict[str, str]:
        return client.call_from_disk(code, {"topic": "T1", "queueId": "0", **fields}).ext

    assert ask(32) == {"timestamp": "-1"}
    assert ask(29, timestamp="0") == {"offset": "0"}
    first_ms = broker.memory.env.wall_ms()
    for _ in range(3):
        client.send_message("T1")
        broker.advance(1)
    assert ask(30) == {"offset": "3"}
    assert ask(30, queueId="99") == {"offset": "0"}
    assert ask(31) == {"offset": "0"}
    assert ask(32) == {"timestamp": str(first_ms)}
    assert ask(29, timestamp=str(first_ms + 500)) == {"offset": "1"}
    assert ask(29, timestamp=str(first_ms + 9_000)) == {"offset": "3"}
    assert ask(29, timestamp=str(first_ms + 9_000), boundaryType="UPPER") == {"offset": "2"}


def test_answers_that_must_not_be_stale_wait_for_a_majority(broker: ServedBroker, client: FakeClient) -> None:
    opaques = [
        client.send(RequestCode.QUERY_CONSUMER_OFFSET, offset_ext()),
        client.send(RequestCode.GET_MAX_OFFSET, {"topic": "T1", "queueId": "0"}),
        client.send(RequestCode.GET_TOPIC_CONFIG, {"topic": "Unknown"}),
        client.send(RequestCode.PULL_MESSAGE, {"topic": "Unknown"}),
    ]
    assert [client.has_answer(opaque) for opaque in opaques] == [False, False, False, True]
    broker.settle()
    assert [client.answered(opaque).code for opaque in opaques] == [22, 0, 17, 1]


# ---- a commit that took a longer way


def passing_on(broker: ServedBroker, key: str, *client_ids: str) -> FakeClient:
    """A client's channel through another node."""
    passed_on = broker.client(key)
    passed_on.is_forwarded = True
    passed_on.client_ids = set(client_ids)
    return passed_on


def change_leaders(broker: ServedBroker) -> None:
    """This node is deposed, forgets all that it did not apply, and leads again a second later."""
    broker.memory.node.step_down()
    broker.advance(1)
    broker.memory.node.lead()
    broker.settle()


def test_a_consumer_that_seeks_back_through_a_follower_is_heard_from_a_new_leaders_first_moment(
    broker: ServedBroker, client: FakeClient
) -> None:
    passed_on = passing_on(broker, "follower/1", "c1")
    passed_on.send(15, offset_ext(120))
    assert committed(client) == "120"
    change_leaders(broker)
    opaque = passed_on.send(15, offset_ext(100))
    assert committed(client) == "100"
    assert passed_on.answered(opaque).code == ResponseCode.SUCCESS


def test_a_tool_that_resets_a_group_through_a_follower_is_heard_after_a_failover(
    broker: ServedBroker, client: FakeClient
) -> None:
    """It is another client than the one that committed."""
    passing_on(broker, "follower/1", "consumer").send(15, offset_ext(120))
    assert committed(client) == "120"
    change_leaders(broker)
    passing_on(broker, "follower/2", "tool").send(15, offset_ext(100))
    assert committed(client) == "100"


def test_a_new_leader_knows_a_commit_that_was_overtaken_at_the_one_before(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. 120 is committed at a leader; 2. another one leads; 3. it is passed 100, which lay in a follower meanwhile."""
    client.client_ids = {"c1"}
    client.send(15, offset_ext(120))
    assert committed(client) == "120"
    change_leaders(broker)
    passed_on = passing_on(broker, "follower/1", "c1")
    late = passed_on.send(15, offset_ext(100))
    assert committed(client) == "120"
    assert passed_on.answered(late).code == ResponseCode.SUCCESS
    broker.advance(LATE_COMMIT_S + 1)
    passed_on.send(15, offset_ext(80))
    assert committed(client) == "80"


def test_what_a_client_repeats_through_another_channel_overtakes_what_it_sent_before(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. 120 through one node, then 100, which is held up there; 2. 120 through another node; 3. a leader changes."""
    first, second = (passing_on(broker, key, "c1") for key in ("one/1", "two/1"))
    first.send(15, offset_ext(120))
    assert committed(client) == "120"
    second.send(15, offset_ext(120))
    broker.advance(1)
    change_leaders(broker)
    first.send(15, offset_ext(100))
    assert committed(client) == "120"
    entries = len(broker.memory.log.entries)
    second.send(15, offset_ext(120))
    broker.advance(1)
    assert len(broker.memory.log.entries) == entries


def test_a_commit_of_one_client_is_still_known_when_another_one_has_committed_since(
    broker: ServedBroker, client: FakeClient
) -> None:
    """A queue goes from one consumer to the next: what the first one sent before it handed over must not come back."""
    for key, client_id, offset in (("one/1", "c1", 120), ("two/1", "c2", 130)):
        passing_on(broker, key, client_id).send(15, offset_ext(offset))
        assert committed(client) == str(offset)
    passing_on(broker, "three/1", "c1").send(15, offset_ext(100))
    assert committed(client) == "130"


def test_a_new_leader_takes_no_commit_that_may_have_been_overtaken_at_one_of_an_earlier_version(
    broker: ServedBroker, client: FakeClient
) -> None:
    """Which did not tell who committed."""
    broker.offsets.commit(*KEY, 120)
    assert committed(client) == "120"
    change_leaders(broker)
    passed_on = passing_on(broker, "follower/1", "c1")
    assert passed_on.call(15, offset_ext(100)).code == ResponseCode.SYSTEM_BUSY
    assert committed(client) == "120"
    for sender, offset in ((passed_on, 130), (client, 90)):
        sender.send(15, offset_ext(offset))
        assert committed(client) == str(offset)


def test_what_an_earlier_version_stored_is_doubted_for_a_while_only(broker: ServedBroker, client: FakeClient) -> None:
    broker.offsets.commit(*KEY, 120)
    assert committed(client) == "120"
    broker.advance(LATE_COMMIT_S + 1)
    passing_on(broker, "follower/1", "c1").send(15, offset_ext(100))
    assert committed(client) == "100"


def test_a_pull_that_was_passed_on_commits_nothing(broker: ServedBroker, client: FakeClient) -> None:
    """The node that it came to has passed its commit on; later ones of the same channel may be ahead of the pull."""
    client.send(15, offset_ext(120))
    assert committed(client) == "120"
    passed_on = passing_on(broker, "client/2")
    passed_on.send(15, offset_ext(130))
    assert committed(client) == "130"
    passed_on.pull("T1", sysFlag="5", commitOffset="125")
    assert committed(client) == "130"


def test_a_commit_that_waited_for_a_majority_undoes_no_newer_one(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. 100 comes for a group that is not known here, and waits; 2. the group is made; 3. 120 is taken at once."""
    waiting: list[Callable[[Exception | None], None]] = []
    monkeypatch.setattr(broker.memory.node, "read_index", waiting.append)
    late = client.send(15, offset_ext(100, consumerGroup="New"))
    broker.groups.put_group(SubscriptionGroupConfig("New"), lambda _: None)
    broker.advance(0.1)
    newer = client.send(15, offset_ext(120, consumerGroup="New"))
    waiting.pop()(None)
    broker.advance(1)
    assert [client.answered(opaque).code for opaque in (late, newer)] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert broker.memory.machine.state.table(OFFSETS).get("New", "T1", 0) == 120


def test_a_pull_commits_behind_what_its_channel_has_sent_before(broker: ServedBroker, client: FakeClient) -> None:
    """1. The node passed a request on and leads since; 2. commit 100 waits for the answer; 3. a pull brings 120."""
    client.forwards, client.forwards_sent = 1, {1}
    waiting = client.send(15, offset_ext(100))
    client.pull("T1", sysFlag="5", commitOffset="120")
    broker.advance(1)
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) is None
    client.forwards, client.forwards_sent = client.forwards - 1, set()
    broker.advance(1)
    assert client.answered(waiting).code == ResponseCode.SUCCESS
    assert committed(client) == "120"


def test_a_node_that_leads_anew_knows_that_before_it_handles_what_waited(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. A node takes 100 and is deposed; 2. another leader takes 120; 3. the node leads again, where 100 waits."""
    client.send(15, offset_ext(90))
    assert committed(client) == "90"
    late = client.send(15, offset_ext(100))
    broker.memory.node.step_down()
    broker.advance(0.1)
    state, now = broker.memory.machine.state, broker.memory.env.now()
    state.table(OFFSETS).commit(*KEY, 120)
    state.table(OFFSETS).recent.note(KEY, Taken(120, Committer.of("elsewhere/1", (), client.address.ip), now))
    broker.memory.node.lead()
    broker.advance(1)
    assert client.answered(late).code == ResponseCode.SUCCESS
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) == 120


def test_an_overtaken_commit_is_answered_when_the_higher_one_is_applied(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send(15, offset_ext(120))
    passed_on = passing_on(broker, "client/2")
    late = passed_on.send(15, offset_ext(100))
    assert not passed_on.has_answer(late)
    broker.settle()
    assert passed_on.answered(late).code == ResponseCode.SUCCESS
    assert broker.memory.machine.state.table(OFFSETS).get(*KEY) == 120


def test_an_overtaken_commit_fails_with_the_higher_one(broker: ServedBroker, client: FakeClient) -> None:
    """The leader that took both is deposed before either is in the log: neither may be acknowledged."""
    client.send(15, offset_ext(120))
    passed_on = passing_on(broker, "client/2")
    late = passed_on.send(15, offset_ext(100))
    broker.memory.node.step_down()
    broker.settle()
    assert passed_on.answered(late).code != ResponseCode.SUCCESS


def test_a_commit_is_taken_when_the_higher_one_was_lost(broker: ServedBroker, client: FakeClient) -> None:
    """1. 90 is committed; 2. 120 is taken and lost with the leadership; 3. the node leads again and is passed 100."""
    client.send(15, offset_ext(90))
    assert committed(client) == "90"
    client.send(15, offset_ext(120), oneway=True)
    broker.memory.node.step_down()
    broker.memory.node.lead()
    broker.advance(1)
    passed_on = passing_on(broker, "client/2")
    passed_on.send(15, offset_ext(100))
    assert committed(client) == "100"


def test_a_commit_that_came_back_from_a_deposed_leader_is_known_to_be_old(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. The node passed 100 on; 2. it leads, and takes 120 of the same client; 3. the leader before gives 100 back."""
    ext = {key: str(value) for key, value in offset_ext(100).items()}
    command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, opaque=77, ext=ext)
    held = read_request(client, 0, encode_json_header(command), b"", broker.memory.env.now())
    assert held is not None
    held.sequence = 1
    newer = broker.client("client/2")
    newer.send(15, offset_ext(120))
    client.in_flight += 1
    broker.service.requests.run(held)
    broker.advance(1)
    assert client.answered(77).code == ResponseCode.SUCCESS
    assert committed(newer) == "120"


def test_a_commit_that_a_pull_brings_to_a_follower_is_in_flight_until_the_leader_has_it(
    broker: ServedBroker, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be settled without having been counted, and `max_in_flight` hold nobody any more."""
    monkeypatch.setattr(broker.group, "ready", False)
    monkeypatch.setattr(broker.group, "leader_id", "n2")
    passed_on: list[Request] = []
    monkeypatch.setattr(broker.service.requests._forwarder, "pass_on", passed_on.append)
    client.pull("T1", sysFlag="5", commitOffset="1")
    assert [request.code for request in passed_on] == [RequestCode.UPDATE_CONSUMER_OFFSET]
    assert client.in_flight == 1
    passed_on[0].respond()
    assert client.in_flight == 0
