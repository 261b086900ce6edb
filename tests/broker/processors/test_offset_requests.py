"""What consumer groups are promised about their offsets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, ServedBroker, pull_ext

from dledger_broker.forward import Envelope, ForwardedOrigin
from dledger_broker.processors.offsets import LATE_COMMIT_S, NEW_LEADER_S, RecentCommits
from dledger_broker.server.request import read_request
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.hosts import HostAddress
from dledger_remoting.topics import SubscriptionGroupConfig

KEY = ("CG", "T1", 0)


@pytest.fixture(autouse=True)
def group(broker: ServedBroker) -> None:
    broker.memory.machine.proposals.put_group(SubscriptionGroupConfig("CG"), lambda _: None)
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
    assert broker.memory.machine.state.offsets.get(*KEY) == 5


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


@pytest.mark.parametrize("name", ["CID_RMQ_SYS_" + "x" * 200, "CID_RMQ_SYS_ \u00e9"])
def test_a_group_that_needs_no_creating_needs_a_groups_name(
    broker: ServedBroker, client: FakeClient, name: str
) -> None:
    """What one client commits goes into the log together with what all others do."""
    assert client.call(15, offset_ext(1, consumerGroup=name)).code == 29
    assert client.pull("T1", consumerGroup=name, sysFlag="5", commitOffset="4").code == 29
    broker.advance(1)
    assert broker.memory.machine.state.offsets.pairs() == []


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


def origin(channel: str, *client_ids: str, ip: str = "10.0.0.9") -> ForwardedOrigin:
    return ForwardedOrigin(Envelope(channel, ip, 1, client_ids, 0, 0, b"", b""), lambda _: None)


@pytest.mark.parametrize(
    ("late", "offset", "after_s", "is_late"),
    [
        (origin("old", "c1"), 100, 1.0, True),
        (origin("old", "c1"), 120, 1.0, False),
        (origin("new", "c1"), 100, 1.0, False),
        (origin("old", "c2"), 100, 1.0, False),
        (origin("old", "c1"), 100, LATE_COMMIT_S + 1, False),
        (origin("old"), 100, 1.0, True),
        (origin("old", ip="10.0.0.10"), 100, 1.0, False),
    ],
)
def test_a_forwarded_commit_never_undoes_a_newer_one_of_its_client(
    late: ForwardedOrigin, offset: int, after_s: float, *, is_late: bool
) -> None:
    commits = RecentCommits()
    commits.note(origin("new", "c1"), KEY, 120, 0.0)
    assert commits.is_late(late, KEY, offset, after_s) is is_late


def test_old_commits_are_forgotten() -> None:
    commits = RecentCommits()
    for queue_id in range(100):
        commits.note(origin("new", "c1"), ("CG", "T1", queue_id), 1, float(queue_id))
    assert len(commits._commits) <= LATE_COMMIT_S + 1


def test_a_new_leader_takes_no_commit_that_may_have_been_overtaken(broker: ServedBroker, client: FakeClient) -> None:
    """1. 120 is committed at a leader; 2. another one leads; 3. it is passed 100, which waited for the first leader."""
    client.send(15, offset_ext(120))
    assert committed(client) == "120"
    broker.memory.node.step_down()
    broker.advance(1)
    broker.memory.node.lead()
    broker.settle()
    passed_on = broker.client("client/2")
    passed_on.is_forwarded = True
    passed_on.address = HostAddress("10.0.0.8", 40000)
    assert passed_on.call(15, offset_ext(100)).code == ResponseCode.SYSTEM_BUSY
    assert committed(client) == "120"
    for sender, offset in ((passed_on, 130), (client, 90)):
        sender.send(15, offset_ext(offset))
        assert committed(client) == str(offset)
    broker.memory.node.step_down()
    broker.advance(1)
    broker.memory.node.lead()
    passed_on.pull("T1", sysFlag="5", commitOffset="70")
    assert committed(client) == "90"
    broker.advance(NEW_LEADER_S + 1)
    passed_on.send(15, offset_ext(80))
    assert committed(client) == "80"


def test_a_pull_that_was_passed_on_commits_nothing(broker: ServedBroker, client: FakeClient) -> None:
    """The node that it came to has passed its commit on; later ones of the same channel may be ahead of the pull."""
    client.send(15, offset_ext(120))
    assert committed(client) == "120"
    passed_on = forwarding_client(broker)
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
    broker.memory.machine.proposals.put_group(SubscriptionGroupConfig("New"), lambda _: None)
    broker.advance(0.1)
    newer = client.send(15, offset_ext(120, consumerGroup="New"))
    waiting.pop()(None)
    broker.advance(1)
    assert [client.answered(opaque).code for opaque in (late, newer)] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert broker.memory.machine.state.offsets.get("New", "T1", 0) == 120


def test_a_pull_commits_behind_what_its_channel_has_sent_before(broker: ServedBroker, client: FakeClient) -> None:
    """1. The node passed a request on and leads since; 2. commit 100 waits for the answer; 3. a pull brings 120."""
    client.forwards, client.forwards_sent = 1, {1}
    waiting = client.send(15, offset_ext(100))
    client.pull("T1", sysFlag="5", commitOffset="120")
    broker.advance(1)
    assert broker.memory.machine.state.offsets.get(*KEY) is None
    client.forwards, client.forwards_sent = client.forwards - 1, set()
    broker.advance(1)
    assert client.answered(waiting).code == ResponseCode.SUCCESS
    assert committed(client) == "120"


def forwarding_client(broker: ServedBroker) -> FakeClient:
    """The same machine's channel through another node."""
    passed_on = broker.client("client/2")
    passed_on.is_forwarded = True
    return passed_on


def test_a_node_that_leads_anew_knows_that_before_it_handles_what_waited(
    broker: ServedBroker, client: FakeClient
) -> None:
    """1. A node takes 100 and is deposed; 2. another leader takes 120; 3. the node leads again, where 100 waits."""
    client.send(15, offset_ext(90))
    assert committed(client) == "90"
    late = client.send(15, offset_ext(100))
    broker.memory.node.step_down()
    broker.advance(0.1)
    broker.memory.machine.state.offsets.commit(*KEY, 120)
    broker.memory.node.lead()
    broker.settle()
    assert client.answered(late).code == ResponseCode.SYSTEM_BUSY
    assert broker.memory.machine.state.offsets.get(*KEY) == 120


def test_an_overtaken_commit_is_answered_when_the_higher_one_is_applied(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send(15, offset_ext(120))
    passed_on = forwarding_client(broker)
    late = passed_on.send(15, offset_ext(100))
    assert not passed_on.has_answer(late)
    broker.settle()
    assert passed_on.answered(late).code == ResponseCode.SUCCESS
    assert broker.memory.machine.state.offsets.get(*KEY) == 120


def test_an_overtaken_commit_fails_with_the_higher_one(broker: ServedBroker, client: FakeClient) -> None:
    """The leader that took both is deposed before either is in the log: neither may be acknowledged."""
    client.send(15, offset_ext(120))
    passed_on = forwarding_client(broker)
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
    passed_on = forwarding_client(broker)
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
    broker.parts.requests.run(held)
    broker.advance(1)
    assert client.answered(77).code == ResponseCode.SUCCESS
    assert committed(newer) == "120"
