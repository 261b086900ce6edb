"""Pulls beside sends: a turn stages its unit first, and then answers one pull that finds messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, send_ext

from dledger_broker.features.sending.on_their_way import RECENT_S
from dledger_broker.frontend.pull_turns import MAX_PULLS
from dledger_broker.kernel.requests import Request
from dledger_remoting.command import RemotingCommand, encode_command, encode_json_header
from dledger_remoting.frame import split_frames

PULL, SEND = 11, 310


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


def pull(opaque: int, queue_id: int = 0, **fields: str) -> RemotingCommand:
    return RemotingCommand(PULL, opaque=opaque, ext=pull_ext("T1", queue_id, 0, **fields))


def send(opaque: int) -> RemotingCommand:
    return RemotingCommand(SEND, opaque=opaque, ext=send_ext("T1"), body=b"beside")


def answered(client: FakeClient) -> list[int]:
    return [answer.opaque for answer in client.answers]


def test_pulls_wait_for_nothing_without_sends(broker: ServedBroker) -> None:
    client = broker.client()
    read(broker, client, *(pull(number) for number in range(20)))
    assert answered(client) == list(range(20))


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
    read(broker, client, send(100), *(pull(number, 1) for number in range(2 * MAX_PULLS)))
    assert answered(client) == list(range(MAX_PULLS))
    turns.next()
    assert answered(client) == list(range(2 * MAX_PULLS))


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
