"""Turns of pulls: a turn answers a few pulls. Beside sends, which go first, it answers one pull that finds messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, send_ext

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.sending.on_their_way import RECENT_S
from dledger_broker.frontend.pull_turns import MAX_PULLS, MAX_PULLS_BESIDE_SENDS
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command, encode_json_header
from dledger_remoting.frame import split_frames

PULL, SEND, ONEWAY = 11, 310, 2
QUEUE = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
FIRST_TURN = MAX_PULLS - 1
"""Number of further pulls in the first turn: the pull that made the group has used one place."""


class Turns:
    """Callbacks of a broker's environment, run a turn at a time. Callbacks that a turn adds run in the next turn."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def next(self, count: int = 1) -> None:
        for _ in range(count):
            due, self.due[:] = list(self.due), []
            for callback in due:
                callback()


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """Return a broker with three messages in queue 0 of T1, and none in queue 1."""
    broker = make_broker()
    for _ in range(3):
        broker.client().send_message("T1")
    broker.client().pull("T1")  # makes its group
    broker.advance(RECENT_S)
    return broker


@pytest.fixture
def turns(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Turns:
    turns = Turns()
    monkeypatch.setattr(broker.memory.env, "call_soon", turns.due.append)
    return turns


@pytest.fixture
def commit(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Keep staged entries from a majority, and return a function that ends this."""
    node, commit = broker.memory.node, broker.memory.node.commit
    monkeypatch.setattr(node, "commit", lambda: None)

    def let_go() -> None:
        monkeypatch.setattr(node, "commit", commit)
        commit()

    return let_go


held = pytest.mark.usefixtures("commit")
"""Tests whose staged entries no majority gets."""


def read(client: FakeClient, *commands: RemotingCommand) -> None:
    """Deliver one read of a connection, in a turn of its own."""
    data = b"".join(map(encode_command, commands))
    client.broker.service.requests.on_reads([(client, data, split_frames(data, len(data))[0])])


def pull(opaque: int, queue_id: int = 0, *, flag: int = 0, **fields: str) -> RemotingCommand:
    return RemotingCommand(PULL, opaque=opaque, flag=flag, ext=pull_ext("T1", queue_id, 0, **fields))


def send(opaque: int) -> RemotingCommand:
    return RemotingCommand(SEND, opaque=opaque, ext=send_ext("T1"), body=b"beside")


def answered(client: FakeClient) -> list[int]:
    return [answer.opaque for answer in client.answers]


@pytest.mark.parametrize("pulls_per_read", [1, 2 * MAX_PULLS])
def test_the_number_of_pulls_per_turn_is_limited(turns: Turns, client: FakeClient, pulls_per_read: int) -> None:
    for first in range(0, 2 * MAX_PULLS, pulls_per_read):
        read(client, *(pull(first + number) for number in range(pulls_per_read)))
    for most in (FIRST_TURN, FIRST_TURN + MAX_PULLS, 2 * MAX_PULLS):
        assert answered(client) == list(range(most))
        turns.next()
    assert turns.due == []


def test_a_client_with_many_pulls_does_not_starve_another_client(turns: Turns, client: FakeClient) -> None:
    few = client.broker.client("client/2")
    read(client, *(pull(number) for number in range(3 * MAX_PULLS)))
    read(few, pull(1), pull(2))
    assert answered(few) == []
    turns.next()
    assert answered(few) == [1, 2]
    assert len(client.answers) == FIRST_TURN + MAX_PULLS - 2


@pytest.mark.parametrize("beside_sends", [False, True])
def test_a_request_behind_more_pulls_than_a_turn_handles_waits_for_all_the_pulls(
    turns: Turns, client: FakeClient, request: pytest.FixtureRequest, *, beside_sends: bool
) -> None:
    if beside_sends:
        request.getfixturevalue("commit")
    other = client.broker.client("client/2")
    pulls = [pull(number, sysFlag="5", commitOffset="1") for number in range(MAX_PULLS + 1)]
    read(client, *([send(800)] if beside_sends else []), *pulls, RemotingCommand(999, opaque=900))
    read(other, RemotingCommand(999, opaque=901))
    assert answered(other) == [901], "what others ask waits for none of these"
    assert 900 not in answered(client)
    turns.next(MAX_PULLS + 2)
    assert answered(client) == [*range(MAX_PULLS + 1), 900]


def test_a_request_behind_pulls_is_handled_after_the_pulls_are_answered(
    turns: Turns, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pulls of a turn may be gathered, and a later request could change what they find."""
    requests, seen = client.broker.service.requests, list[str]()
    end_turn = requests._pulls.end_turn
    monkeypatch.setattr(requests._pulls, "end_turn", lambda: (seen.append("answered"), end_turn()))
    read(client, *(pull(number) for number in range(MAX_PULLS + 1)))
    seen.clear()
    requests._pull_turns.add_behind(client.key, lambda: seen.append("handled"))
    turns.next()
    assert seen[:2] == ["answered", "handled"]


@held
def test_pulls_that_want_no_answer_count_while_they_wait(turns: Turns, client: FakeClient) -> None:
    """With too many pulls that want no answer, their connection is not read further."""
    read(client, send(100))
    for _ in range(3):
        read(client, *(pull(number, flag=ONEWAY) for number in range(100)))
    assert client.settled < 100
    assert client.in_flight == 1 + 300 - client.settled
    turns.next(300)
    assert (client.in_flight, client.settled) == (1, 300)


@held
def test_sends_of_a_turn_are_staged_before_earlier_pulls(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    node, seen = client.broker.memory.node, []
    stage = node.stage

    def staged(*args: object, **keywords: object) -> int:
        seen.append(answered(client))
        return stage(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(node, "stage", staged)
    read(client, pull(1), pull(2), send(3))
    assert seen == [[]], "staged in this turn, and no pull was answered before"
    assert answered(client) == [1]


def test_beside_sends_a_turn_answers_one_pull_that_finds_messages(
    turns: Turns, client: FakeClient, commit: Callable[[], None]
) -> None:
    read(client, send(1), *(pull(number) for number in range(2, 6)))
    assert answered(client) == [2]
    turns.next()
    assert answered(client) == [2, 3]
    read(client, pull(6))
    assert answered(client) == [2, 3], "a turn is due: what comes meanwhile is behind what waits"
    commit()
    turns.next()
    assert answered(client) == [2, 3, 1, 4], "its producer may send again in a moment"
    client.broker.memory.env.advance(RECENT_S)
    turns.next()
    assert answered(client) == [2, 3, 1, 4, 5, 6], "it does not"
    assert (client.in_flight, turns.due) == (0, [])


@held
def test_beside_sends_a_turn_answers_some_pulls_that_find_nothing(turns: Turns, client: FakeClient) -> None:
    read(client, send(100), *(pull(number, 1) for number in range(2 * MAX_PULLS_BESIDE_SENDS)))
    assert answered(client) == list(range(MAX_PULLS_BESIDE_SENDS))
    turns.next()
    assert answered(client) == list(range(2 * MAX_PULLS_BESIDE_SENDS))


@held
def test_a_pull_by_the_general_path_waits_for_its_turn(turns: Turns, client: FakeClient) -> None:
    read(client, send(1), *(RemotingCommand(PULL, opaque=k, ext=pull_ext("T1"), serialize_type=1) for k in (2, 3)))
    assert answered(client) == [2]
    turns.next()
    assert answered(client) == [2, 3]


@held
def test_a_resumed_pull_waits_for_no_turn(client: FakeClient) -> None:
    """The quota that lets pulls go on counts what one pull reads before it lets the next pull go on."""
    read(client, send(1), pull(2), pull(3))
    now, requests = client.broker.memory.env.now(), client.broker.service.requests
    requests.run(Request(client, PULL, 4, 0, 0, encode_json_header(pull(4)), b"", now))
    assert answered(client) == [2, 4]


@held
def test_a_refused_pull_is_answered_and_does_not_block_the_next_pull(client: FakeClient) -> None:
    read(client, send(1), pull(2), pull(3, subscription="a >", expressionType="SQL92"), pull(4))
    client.broker.settle()
    assert [(answer.opaque, answer.code) for answer in client.answers] == [(2, 0), (3, 23), (4, 0)]


def test_a_commit_overtakes_no_pull_that_commits_an_older_offset(
    client: FakeClient, commit: Callable[[], None]
) -> None:
    pulls = [pull(number, sysFlag="5", commitOffset="1") for number in (2, 3)]
    read(client, send(1), *pulls, RemotingCommand(15, opaque=4, ext=QUEUE | {"commitOffset": "2"}))
    client.broker.settle()
    commit()
    client.broker.settle()
    assert client.broker.client().call(14, QUEUE).ext["offset"] == "2"


def heartbeat(opaque: int) -> RemotingCommand:
    body = b'{"clientID":"C1","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[],'
    body += b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING"}]}'
    return RemotingCommand(34, opaque=opaque, body=body)


def test_waiting_requests_of_a_lost_channel_are_handled_before_the_loss(turns: Turns, client: FakeClient) -> None:
    """Otherwise a heartbeat makes a member of a client that is gone, and the member stays for minutes."""
    pulls = [pull(number, sysFlag="5", commitOffset="1") for number in range(2 * MAX_PULLS)]
    read(client, *pulls, heartbeat(900))
    client.is_open = False
    service = client.broker.service
    service.channel_lost(client)
    turns.next(5)
    assert service.gossip.local.channel_of("C1") is None
    assert answered(client) == [*range(FIRST_TURN), 900], "nobody would read answers to the other pulls"
    assert client.in_flight == 0


def test_a_stopping_node_handles_waiting_requests_before_saving_commits(client: FakeClient) -> None:
    broker, newer = client.broker, QUEUE | {"commitOffset": "2"}
    pulls = [pull(number, flag=ONEWAY) for number in range(2 * MAX_PULLS)]

    def close_intake() -> None:
        read(client, *pulls, RemotingCommand(15, opaque=900, flag=ONEWAY, ext=newer))

    broker.memory.run(broker.service.settle(close_intake))
    assert (client.in_flight, client.settled) == (0, 2 * MAX_PULLS + 1)
    assert broker.memory.machine.state.table(OFFSETS).get("CG", "T1", 0) == 2


def test_a_client_with_a_clogged_connection_has_no_turn(turns: Turns, client: FakeClient) -> None:
    other, flow = client.broker.client("client/2"), client.broker.service.requests.flow
    flow.clog(client.key)
    read(client, pull(1), RemotingCommand(RequestCode.GET_MAX_OFFSET, 2, ext={"topic": "T1", "queueId": "0"}))
    read(other, pull(1))
    turns.next()
    assert (answered(client), answered(other)) == ([], [1])
    flow.unclog(client.key)
    turns.next(3)
    assert answered(client) == [1, 2]
