"""Who is told that a topic or group exists, or that a topic has stored a message, finds its route: the answer waits."""

from __future__ import annotations

import logging
import math

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger.statemachine import Leadership
from dledger_broker.kernel.announcements import FINDABLE_S

TOPIC = {
    "topic": "NEW",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
GROUP = b'{"groupName":"G"}'
GROUPS = b'{"groupConfigList":[{"groupName":"G"},{"groupName":"H"}]}'
SEVERAL = b'{"topicConfigList":[{"topicName":"NEW"},{"topicName":"B"}]}'


class NameServers:
    """All name servers as one: they know the topics as of `told`, once the test says so."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.told: float = broker.memory.machine.state.topic_table.version
        self.hurried = 0
        broker.service.announcements.attach(self)

    def told_version(self) -> float:
        return self.told if self.broker.group.ready else math.inf

    def untold(self, version: int) -> list[str]:
        return [] if self.told >= version else ["ns1:9876"]

    def hurry(self) -> None:
        self.hurried += 1

    def tell(self) -> None:
        self.told = self.broker.memory.machine.state.topic_table.version
        self.broker.service.announcements.check()
        self.broker.settle()


@pytest.fixture
def name_servers(broker: ServedBroker) -> NameServers:
    return NameServers(broker)


def ask(client: FakeClient, code: int, ext: dict[str, str], body: bytes = b"") -> int:
    opaque = client.send(code, ext, body)
    client.broker.settle()
    return opaque


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
def test_the_answer_waits_until_the_name_servers_know(
    client: FakeClient, name_servers: NameServers, code: int, ext: dict[str, str], body: bytes
) -> None:
    asked = ask(client, code, ext, body)
    assert not client.has_answer(asked)
    assert name_servers.hurried
    name_servers.tell()
    answer = client.answered(asked)
    assert answer.code == 0
    assert not answer.remark
    assert client.broker.counters.changes_untold == 0


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [(17, TOPIC, b""), (200, {}, GROUP), (310, send_ext("NEW"), b"first")],
    ids=["create", "group", "first send"],
)
def test_a_name_server_that_hangs_is_waited_for_one_second_at_most(
    client: FakeClient, name_servers: NameServers, code: int, ext: dict[str, str], body: bytes
) -> None:
    """What docs/promises.md says, in its number: clients give up after 3 s."""
    asked = ask(client, code, ext, body)
    client.broker.memory.env.advance(0.9)
    assert not client.has_answer(asked)
    client.broker.memory.env.advance(0.1)
    client.broker.settle()
    assert client.answered(asked).code == 0
    assert client.broker.counters.changes_untold == 1


def test_who_could_not_wait_longer_is_told_which_name_servers_do_not_show_the_change(
    client: FakeClient, name_servers: NameServers, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [ask(client, 17, {**TOPIC, "topic": name}) for name in ("A", "B", "C")]
    with caplog.at_level(logging.WARNING):
        client.broker.memory.env.advance(FINDABLE_S)
    remarks = {client.answered(opaque).remark for opaque in asked}
    assert remarks == {"done, but not shown yet by name server ns1:9876: clients may find it later"}
    assert caplog.messages == ["event=changes_untold changes=3 namesrv=ns1:9876"]
    assert client.broker.counters.changes_untold == 3


def test_what_a_leader_can_no_longer_tell_is_answered_at_once_and_says_so(
    client: FakeClient, broker: ServedBroker, name_servers: NameServers
) -> None:
    asked = ask(client, 17, TOPIC)
    term = broker.group.term
    broker.group.on_leadership(Leadership(term + 1, "n2", is_leader=False, ready=False))
    broker.service.announcements.check()
    assert client.answered(asked).code == 0
    assert "not shown yet by name server ns1:9876" in (client.answered(asked).remark or "")


def test_what_was_told_before_the_leadership_was_lost_is_told(
    client: FakeClient, broker: ServedBroker, name_servers: NameServers
) -> None:
    asked = ask(client, 17, TOPIC)
    name_servers.told = broker.memory.machine.state.topic_table.version
    broker.group.on_leadership(Leadership(broker.group.term + 1, "n2", is_leader=False, ready=False))
    broker.service.announcements.check()
    assert client.answered(asked).code == 0
    assert not client.answered(asked).remark


def test_a_permission_that_the_next_change_overtakes_is_answered_with_that(
    client: FakeClient, name_servers: NameServers
) -> None:
    asked = [ask(client, 17, {**TOPIC, "topic": "T1", "perm": perm}) for perm in ("4", "6")]
    name_servers.tell()
    assert [client.answered(opaque).code for opaque in asked] == [0, 0]
    assert client.broker.memory.machine.state.topics["T1"].config.perm == 6


def test_a_group_comes_with_its_retry_topic(client: FakeClient, broker: ServedBroker) -> None:
    assert (
        client.call(225, {}, b'{"groupConfigList":[{"groupName":"G","retryQueueNums":3},{"groupName":"H"}]}').code == 0
    )
    topics = broker.memory.machine.state.topics
    assert topics["%RETRY%G"].config.write_queue_nums == 3
    assert "%RETRY%H" in topics
    version = broker.memory.machine.state.topic_table.version
    assert client.call(200, {}, b'{"groupName":"G","retryQueueNums":5}').code == 0
    assert broker.memory.machine.state.topic_table.version == version
    assert client.call(200, {}, b'{"groupName":"TOOLS_CONSUMER"}').code == 0
    assert "%RETRY%TOOLS_CONSUMER" not in topics


def test_a_group_whose_retry_topic_is_being_deleted_gets_another(client: FakeClient, broker: ServedBroker) -> None:
    assert client.call(200, {}, GROUP).code == 0
    deleted, put = client.send(215, {"topic": "%RETRY%G"}), client.send(200, {}, GROUP)
    broker.settle()
    assert client.answered(deleted).code == client.answered(put).code == 0
    assert "%RETRY%G" in broker.memory.machine.state.topics


def test_a_group_that_is_there_waits_for_a_retry_topic_that_is_still_on_its_way(
    client: FakeClient, name_servers: NameServers
) -> None:
    first = ask(client, 200, {}, GROUP)
    other = FakeClient(client.broker, "client/2")
    second = ask(other, 200, {}, GROUP)
    assert not client.has_answer(first)
    assert not other.has_answer(second)
    name_servers.tell()
    assert client.answered(first).code == other.answered(second).code == 0


def test_no_later_send_is_answered_before_the_topic_can_be_found(client: FakeClient, name_servers: NameServers) -> None:
    other = FakeClient(client.broker, "client/2")
    first = ask(client, 310, send_ext("NEW"), b"first")
    second = ask(other, 310, send_ext("NEW"), b"second")
    elsewhere = ask(other, 310, send_ext("T1"), b"to a topic that is known")
    assert other.answered(elsewhere).code == 0
    assert not other.has_answer(second)
    name_servers.tell()
    assert client.answered(first).code == other.answered(second).code == 0
    assert ask(other, 310, send_ext("NEW"), b"third")
    assert name_servers.hurried == 1


def test_later_sends_do_not_make_earlier_ones_wait_longer(client: FakeClient, name_servers: NameServers) -> None:
    asked = [ask(client, 17, TOPIC)]
    for _ in range(9):
        client.broker.memory.env.advance(FINDABLE_S * 0.1)
        asked.append(ask(client, 310, send_ext("NEW"), b"x"))
    client.broker.memory.env.advance(FINDABLE_S * 0.15)
    client.broker.settle()
    assert all(client.answered(opaque).code == 0 for opaque in asked)


def test_a_change_of_a_topic_that_is_known_holds_up_no_send(client: FakeClient, name_servers: NameServers) -> None:
    changed = ask(client, 17, {**TOPIC, "topic": "T1"})
    sent = ask(client, 310, send_ext("T1"), b"x")
    assert client.answered(sent).code == 0
    assert not client.has_answer(changed)


def test_a_failed_creation_is_answered_at_once(
    client: FakeClient, broker: ServedBroker, name_servers: NameServers
) -> None:
    assert client.call(17, {**TOPIC, "perm": "9"}).code == 29
    assert not name_servers.hurried


def test_changes_are_answered_in_their_order_each_as_soon_as_it_is_known(
    client: FakeClient, broker: ServedBroker, name_servers: NameServers
) -> None:
    first = ask(client, 17, TOPIC)
    known = broker.memory.machine.state.topic_table.version
    second = ask(client, 17, {**TOPIC, "topic": "B"})
    name_servers.told = known
    broker.service.announcements.check()
    assert client.answered(first).code == 0
    assert not client.has_answer(second)
    name_servers.tell()
    assert client.answered(second).code == 0
