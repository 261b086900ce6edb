"""Turns of pulls: a few in each, and beside sends one that finds messages, behind the unit of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, send_ext

from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.features.sending.on_their_way import RECENT_S
from dledger_broker.frontend.pull_turns import MAX_PULLS, MAX_PULLS_BESIDE_SENDS
from dledger_broker.kernel.requests import Request
from dledger_remoting.command import RemotingCommand, encode_command, encode_json_header
from dledger_remoting.frame import split_frames

PULL, SEND, ONEWAY = 11, 310, 2
FIRST_TURN = MAX_PULLS - 1
"""The one that has made the group has been of it as well."""


class Turns:
    """The callbacks of a broker's environment, which run a turn at a time: those of a turn's callbacks in the next."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: list[Callable[[], None]] = []
        monkeypatch.setattr(broker.memory.env, "call_soon", self.due.append)

    def next(self) -> None:
        due, self.due[:] = list(self.due), []
        for callback in due:
            callback()


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    """A broker with three messages in queue 0 of T1, and none in queue 1."""
    broker = make_broker()
    for _ in range(3):
        broker.client().send_message("T1")
    broker.client().pull("T1")  # its group is made
    broker.advance(RECENT_S)
    return broker


def hold_commits(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no majority have what is staged; returns what ends that."""
    node, commit = broker.memory.node, broker.memory.node.commit
    monkeypatch.setattr(node, "commit", lambda: None)

    def let_go() -> None:
        monkeypatch.setattr(node, "commit", commit)
        commit()

    return let_go


def read(broker: ServedBroker, client: FakeClient, *commands: RemotingCommand) -> None:
    """One read of a connection, in a turn of its own."""
    data = b"".join(map(encode_command, commands))
    broker.service.requests.on_reads([(client, data, split_frames(data, len(data))[0])])


def pull(opaque: int, queue_id: int = 0, *, flag: int = 0, **fields: str) -> RemotingCommand:
    return RemotingCommand(PULL, opaque=opaque, flag=flag, ext=pull_ext("T1", queue_id, 0, **fields))


def send(opaque: int) -> RemotingCommand:
    return RemotingCommand(SEND, opaque=opaque, ext=send_ext("T1"), body=b"beside")


def answered(client: FakeClient) -> list[int]:
    return [answer.opaque for answer in client.answers]


def test_pulls_wait_for_nothing_without_sends(broker: ServedBroker) -> None:
    client = broker.client()
    read(broker, client, *(pull(number) for number in range(20)))
    assert answered(client) == list(range(20))


def test_a_turn_handles_no_more_pulls_than_are_soon_written(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, client = Turns(broker, monkeypatch), broker.client()
    read(broker, client, *(pull(number) for number in range(2 * MAX_PULLS)))
    for most in (FIRST_TURN, FIRST_TURN + MAX_PULLS, 2 * MAX_PULLS):
        assert answered(client) == list(range(most))
        turns.next()
    assert turns.due == []


def test_several_reads_of_a_turn_are_one_turn(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, client = Turns(broker, monkeypatch), broker.client()
    for number in range(MAX_PULLS):
        read(broker, client, pull(number))
    assert answered(client) == list(range(FIRST_TURN))
    turns.next()
    assert answered(client) == list(range(MAX_PULLS))


def test_who_has_many_pulls_lets_others_have_theirs(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, many, few = Turns(broker, monkeypatch), broker.client("client/1"), broker.client("client/2")
    read(broker, many, *(pull(number) for number in range(3 * MAX_PULLS)))
    read(broker, few, pull(1), pull(2))
    assert answered(few) == []
    turns.next()
    assert answered(few) == [1, 2]
    assert len(many.answers) == FIRST_TURN + MAX_PULLS - 2


@pytest.mark.parametrize("beside_sends", [False, True])
def test_a_commit_behind_more_pulls_than_a_turn_handles_waits_behind_them(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch, *, beside_sends: bool
) -> None:
    if beside_sends:
        hold_commits(broker, monkeypatch)
    turns, client, other = Turns(broker, monkeypatch), broker.client(), broker.client("client/2")
    pulls = [pull(number, sysFlag="5", commitOffset="1") for number in range(MAX_PULLS + 1)]
    unknown, other_unknown = (RemotingCommand(999, opaque=opaque) for opaque in (900, 901))
    read(broker, client, *([send(800)] if beside_sends else []), *pulls, unknown)
    read(broker, other, other_unknown)
    assert answered(other) == [901], "what others ask waits for none of these"
    assert 900 not in answered(client)
    for _ in range(MAX_PULLS + 2):
        turns.next()
    assert answered(client) == [*range(MAX_PULLS + 1), 900]


def test_what_waits_behind_pulls_is_handled_once_they_are_answered(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pulls of a turn may be gathered: what comes behind could change what they find."""
    turns, client = Turns(broker, monkeypatch), broker.client()
    pulls, seen = broker.service.requests._pulls, list[str]()
    end_turn = pulls.end_turn
    monkeypatch.setattr(pulls, "end_turn", lambda: (seen.append("answered"), end_turn()))
    read(broker, client, *(pull(number) for number in range(MAX_PULLS + 1)))
    seen.clear()
    broker.service.requests._pull_turns.add_behind(client.key, lambda: seen.append("handled"))
    turns.next()
    assert seen[:2] == ["answered", "handled"]


def test_pulls_that_want_no_answer_count_while_they_wait(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connection is read no further when they are too many."""
    hold_commits(broker, monkeypatch)
    turns, client = Turns(broker, monkeypatch), broker.client()
    read(broker, client, send(100))
    for _ in range(3):
        read(broker, client, *(pull(number, flag=ONEWAY) for number in range(100)))
    assert client.settled < 100
    assert client.in_flight == 1 + 300 - client.settled
    for _ in range(300):
        turns.next()
    assert (client.in_flight, client.settled) == (1, 300)


def test_a_unit_is_staged_before_the_pulls_that_came_ahead_of_its_sends(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_commits(broker, monkeypatch)
    client, stage, seen = broker.client(), broker.memory.node.stage, []

    def staged(*args: object, **keywords: object) -> int:
        seen.append(answered(client))
        return stage(*args, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.memory.node, "stage", staged)
    read(broker, client, pull(1), pull(2), send(3))
    assert seen == [[]], "staged in this turn, and no pull was answered before"
    assert answered(client) == [1]


def test_beside_sends_a_turn_answers_one_pull_that_finds_messages(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hold_commits(broker, monkeypatch)
    turns, client = Turns(broker, monkeypatch), broker.client()
    read(broker, client, send(1), *(pull(number) for number in range(2, 6)))
    assert answered(client) == [2]
    turns.next()
    assert answered(client) == [2, 3]
    read(broker, client, pull(6))
    assert answered(client) == [2, 3], "a turn is due: what comes meanwhile is behind what waits"
    commit()
    turns.next()
    assert answered(client) == [2, 3, 1, 4], "its producer may send again in a moment"
    broker.memory.env.advance(RECENT_S)
    turns.next()
    assert answered(client) == [2, 3, 1, 4, 5, 6], "it does not"
    assert (client.in_flight, turns.due) == (0, [])


def test_beside_sends_a_turn_answers_some_pulls_that_find_nothing(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_commits(broker, monkeypatch)
    turns, client = Turns(broker, monkeypatch), broker.client()
    read(broker, client, send(100), *(pull(number, 1) for number in range(2 * MAX_PULLS_BESIDE_SENDS)))
    assert answered(client) == list(range(MAX_PULLS_BESIDE_SENDS))
    turns.next()
    assert answered(client) == list(range(2 * MAX_PULLS_BESIDE_SENDS))


def test_a_pull_by_the_general_path_waits_for_its_turn_as_well(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_commits(broker, monkeypatch)
    turns, client = Turns(broker, monkeypatch), broker.client()
    binary = [RemotingCommand(PULL, opaque=k, ext=pull_ext("T1"), serialize_type=1) for k in (2, 3)]
    read(broker, client, send(1), *binary)
    assert answered(client) == [2]
    turns.next()
    assert answered(client) == [2, 3]


def test_a_pull_that_goes_on_after_it_waited_for_something_waits_for_no_turn(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lets pulls go on when there is room in a quota counts what one reads before the next one."""
    hold_commits(broker, monkeypatch)
    client = broker.client()
    read(broker, client, send(1), pull(2), pull(3))
    header = encode_json_header(pull(4))
    broker.service.requests.run(Request(client, PULL, 4, 0, 0, header, b"", broker.memory.env.now()))
    assert answered(client) == [2, 4]


def test_a_pull_that_is_refused_in_its_turn_is_answered_and_the_next_one_too(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_commits(broker, monkeypatch)
    client = broker.client()
    refused = pull(3, subscription="a >", expressionType="SQL92")
    read(broker, client, send(1), pull(2), refused, pull(4))
    broker.settle()
    assert [(answer.opaque, answer.code) for answer in client.answers] == [(2, 0), (3, 23), (4, 0)]


def test_a_commit_does_not_overtake_a_pull_that_commits_an_older_offset(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hold_commits(broker, monkeypatch)
    client = broker.client()
    pulls = [pull(number, sysFlag="5", commitOffset="1") for number in (2, 3)]
    newer = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "2"}
    read(broker, client, send(1), *pulls, RemotingCommand(15, opaque=4, ext=newer))
    broker.settle()
    commit()
    broker.settle()
    query = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
    found = broker.client().call(14, query)
    assert found.ext["offset"] == "2"


def heartbeat(opaque: int) -> RemotingCommand:
    body = b'{"clientID":"C1","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","subscriptionDataSet":[],'
    body += b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING"}]}'
    return RemotingCommand(34, opaque=opaque, body=body)


def test_what_waits_of_a_channel_that_is_lost_is_handled_before_that(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a heartbeat makes a member of a client that is gone, and nobody forgets it for minutes."""
    turns, client = Turns(broker, monkeypatch), broker.client()
    commits = {"sysFlag": "5", "commitOffset": "1"}
    read(broker, client, *(pull(number, **commits) for number in range(2 * MAX_PULLS)), heartbeat(900))
    client.is_open = False
    broker.service.channel_lost(client)
    for _ in range(5):
        turns.next()
    assert broker.service.gossip.local.channel_of("C1") is None
    assert answered(client) == [*range(FIRST_TURN), 900], "nobody would read answers to the other pulls"
    assert client.in_flight == 0


def test_what_waits_when_a_node_stops_is_handled_before_its_commits_are_saved(broker: ServedBroker) -> None:
    client, newer = broker.client(), {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "2"}
    pulls = [pull(number, flag=ONEWAY) for number in range(2 * MAX_PULLS)]

    def close_intake() -> None:
        read(broker, client, *pulls, RemotingCommand(15, opaque=900, flag=ONEWAY, ext=newer))

    broker.memory.run(broker.service.settle(close_intake))
    assert (client.in_flight, client.settled) == (0, 2 * MAX_PULLS + 1)
    assert broker.memory.machine.state.table(OFFSETS).get("CG", "T1", 0) == 2
