"""Answers that wait until a topic's route can be found.

A client that is told that a topic or group exists, or that a topic has stored a message, finds the topic's route.
"""

from __future__ import annotations

import logging
import math

import pytest
from served_broker import FakeClient, ServedBroker, send_ext, submit, topic_ext

from dledger.statemachine import Leadership
from dledger_broker.kernel.announcements import FINDABLE_S

TOPIC = topic_ext("NEW")
GROUP = b'{"groupName":"G"}'
GROUPS = b'{"groupConfigList":[{"groupName":"G"},{"groupName":"H"}]}'
SEVERAL = b'{"topicConfigList":[{"topicName":"NEW"},{"topicName":"B"}]}'


class NameServers:
    """All name servers together. They know the topics as of `told`, which a test sets."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.told: float = broker.memory.machine.state.topic_table.version
        self.hurried = 0
        broker.service.announcements.attach(self)

    def announced_version(self) -> float:
        return self.told if self.broker.group.ready else math.inf

    def servers_behind(self, version: int) -> list[str]:
        return [] if self.told >= version else ["ns1:9876"]

    def announce_soon(self) -> None:
        self.hurried += 1

    def tell(self) -> None:
        self.told = self.broker.memory.machine.state.topic_table.version
        self.broker.service.announcements.check()
        self.broker.settle()


@pytest.fixture
def name_servers(broker: ServedBroker) -> NameServers:
    return NameServers(broker)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (17, TOPIC, b""),
        (17, {**TOPIC, "topic": "T1", "perm": "4"}, b""),
        (18, {}, SEVERAL),
        (310, send_ext("NEW"), b"first"),
        (215, {"topic": "T1"}, b""),
        (200, {}, GROUP),
        (225, {}, GROUPS),
    ],
    ids=["create", "permission", "create several", "first send", "delete", "group", "groups"],
)
def test_a_change_is_answered_once_the_name_servers_know_the_change(
    client: FakeClient, name_servers: NameServers, code: int, ext: dict[str, str], body: bytes
) -> None:
    asked = submit(client, code, ext, body)
    assert not client.has_answer(asked)
    assert name_servers.hurried
    name_servers.tell()
    answer = client.answered(asked)
    assert (answer.code, answer.remark or "", client.broker.counters.changes_untold) == (0, "", 0)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [(17, TOPIC, b""), (200, {}, GROUP), (310, send_ext("NEW"), b"first")],
    ids=["create", "group", "first send"],
)
def test_a_name_server_that_hangs_is_waited_for_one_second_at_most(
    client: FakeClient, name_servers: NameServers, code: int, ext: dict[str, str], body: bytes
) -> None:
    """Clients give up after 3 s. The number is that of docs/promises.md."""
    asked = submit(client, code, ext, body)
    client.broker.memory.env.advance(0.9)
    assert not client.has_answer(asked)
    client.broker.memory.env.advance(0.1)
    client.broker.settle()
    assert client.answered(asked).code == 0
    assert client.broker.counters.changes_untold == 1


def test_an_answer_at_the_time_limit_names_the_name_servers_without_the_change(
    client: FakeClient, name_servers: NameServers, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [submit(client, 17, {**TOPIC, "topic": name}) for name in ("A", "B", "C")]
    with caplog.at_level(logging.WARNING):
        client.broker.memory.env.advance(FINDABLE_S)
    remarks = {client.answered(opaque).remark for opaque in asked}
    assert remarks == {"done, but not shown yet by name server ns1:9876: clients may find it later"}
    assert caplog.messages == ["event=changes_untold changes=3 namesrv=ns1:9876"]
    assert client.broker.counters.changes_untold == 3


@pytest.mark.parametrize("known", [False, True])
def test_a_deposed_leader_answers_a_waiting_change_at_once_as_not_shown_yet_or_done(
    client: FakeClient, name_servers: NameServers, known: bool
) -> None:
    asked, broker = submit(client, 17, TOPIC), client.broker
    if known:
        name_servers.told = broker.memory.machine.state.topic_table.version
    broker.group.on_leadership(Leadership(broker.group.term + 1, "n2", is_leader=False, ready=False))
    broker.service.announcements.check()
    answer = client.answered(asked)
    assert (answer.code, "not shown yet by name server ns1:9876" in (answer.remark or "")) == (0, not known)
    assert bool(answer.remark) is not known


def test_a_change_overtaken_by_the_next_change_is_answered_with_the_next_change(
    client: FakeClient, name_servers: NameServers
) -> None:
    asked = [submit(client, 17, topic_ext("T1", perm=perm)) for perm in ("4", "6")]
    name_servers.tell()
    assert [client.answered(opaque).code for opaque in asked] == [0, 0]
    assert client.broker.memory.machine.state.topics["T1"].config.perm == 6


def test_creating_a_group_creates_its_retry_topic(client: FakeClient) -> None:
    several = b'{"groupConfigList":[{"groupName":"G","retryQueueNums":3},{"groupName":"H"}]}'
    assert client.call(225, {}, several).code == 0
    state = client.broker.memory.machine.state
    assert state.topics["%RETRY%G"].config.write_queue_nums == 3
    assert "%RETRY%H" in state.topics
    version = state.topic_table.version
    assert client.call(200, {}, b'{"groupName":"G","retryQueueNums":5}').code == 0
    assert state.topic_table.version == version
    assert client.call(200, {}, b'{"groupName":"TOOLS_CONSUMER"}').code == 0
    assert "%RETRY%TOOLS_CONSUMER" not in state.topics


def test_a_group_whose_retry_topic_is_being_deleted_gets_another(client: FakeClient) -> None:
    assert client.call(200, {}, GROUP).code == 0
    deleted, put = client.send(215, {"topic": "%RETRY%G"}), submit(client, 200, {}, GROUP)
    assert client.answered(deleted).code == client.answered(put).code == 0
    assert "%RETRY%G" in client.broker.memory.machine.state.topics


def test_a_group_waits_for_its_unannounced_retry_topic(client: FakeClient, name_servers: NameServers) -> None:
    waiting = [(one, submit(one, 200, {}, GROUP)) for one in (client, FakeClient(client.broker, "client/2"))]
    assert not any(one.has_answer(opaque) for one, opaque in waiting)
    name_servers.tell()
    assert [one.answered(opaque).code for one, opaque in waiting] == [0, 0]


def test_no_later_send_is_answered_before_the_topic_can_be_found(client: FakeClient, name_servers: NameServers) -> None:
    other = FakeClient(client.broker, "client/2")
    waiting = [(one, submit(one, 310, send_ext("NEW"), b"x")) for one in (client, other)]
    elsewhere = submit(other, 310, send_ext("T1"), b"to a topic that is known")
    assert other.answered(elsewhere).code == 0
    assert not any(one.has_answer(opaque) for one, opaque in waiting)
    name_servers.tell()
    assert [one.answered(opaque).code for one, opaque in waiting] == [0, 0]
    assert submit(other, 310, send_ext("NEW"), b"third")
    assert name_servers.hurried == 1


def test_later_sends_do_not_make_earlier_changes_wait_longer(client: FakeClient, name_servers: NameServers) -> None:
    asked = [submit(client, 17, TOPIC)]
    for _ in range(9):
        client.broker.memory.env.advance(FINDABLE_S * 0.1)
        asked.append(submit(client, 310, send_ext("NEW"), b"x"))
    client.broker.memory.env.advance(FINDABLE_S * 0.15)
    client.broker.settle()
    assert all(client.answered(opaque).code == 0 for opaque in asked)


def test_a_change_of_a_known_topic_delays_no_send(client: FakeClient, name_servers: NameServers) -> None:
    changed = submit(client, 17, {**TOPIC, "topic": "T1"})
    sent = submit(client, 310, send_ext("T1"), b"x")
    assert client.answered(sent).code == 0
    assert not client.has_answer(changed)


def test_a_failed_creation_is_answered_at_once(client: FakeClient, name_servers: NameServers) -> None:
    assert client.call(17, {**TOPIC, "perm": "9"}).code == 29
    assert not name_servers.hurried


def test_each_change_is_answered_as_soon_as_the_name_servers_know_the_change(
    client: FakeClient, broker: ServedBroker, name_servers: NameServers
) -> None:
    first = submit(client, 17, TOPIC)
    known = broker.memory.machine.state.topic_table.version
    second = submit(client, 17, {**TOPIC, "topic": "B"})
    name_servers.told = known
    broker.service.announcements.check()
    assert client.answered(first).code == 0
    assert not client.has_answer(second)
    name_servers.tell()
    assert client.answered(second).code == 0
