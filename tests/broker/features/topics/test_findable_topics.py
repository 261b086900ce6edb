"""Who is told that a topic exists, or that it has stored a message, finds its route: the answer waits for that."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.kernel.announcements import FINDABLE_S

TOPIC = {
    "topic": "NEW",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
SEVERAL = b'{"topicConfigList":[{"topicName":"NEW"},{"topicName":"B"}]}'


class NameServers:
    """All name servers as one: they know the topics as of `told`, once the test says so."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.told: float = broker.memory.machine.state.topic_table.version
        self.hurried = 0
        broker.service.announcements.attach(lambda: self.told, self.hurry)

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
    [(17, TOPIC, b""), (18, {}, SEVERAL), (310, send_ext("NEW"), b"first"), (215, {"topic": "T1"}, b"")],
    ids=["create", "create several", "first send", "delete"],
)
def test_the_answer_waits_until_the_name_servers_know(
    client: FakeClient, name_servers: NameServers, code: int, ext: dict[str, str], body: bytes
) -> None:
    asked = ask(client, code, ext, body)
    assert not client.has_answer(asked)
    assert name_servers.hurried
    name_servers.tell()
    assert client.answered(asked).code == 0


@pytest.mark.parametrize("code", [17, 310], ids=["create", "first send"])
def test_a_name_server_that_hangs_is_not_waited_for_long(
    client: FakeClient, name_servers: NameServers, code: int
) -> None:
    asked = ask(client, code, TOPIC if code == 17 else send_ext("NEW"), b"" if code == 17 else b"first")
    client.broker.memory.env.advance(FINDABLE_S * 0.9)
    assert not client.has_answer(asked)
    client.broker.memory.env.advance(FINDABLE_S * 0.2)
    client.broker.settle()
    assert client.answered(asked).code == 0


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
