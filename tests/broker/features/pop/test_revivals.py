"""Revivals: what comes again while something else cannot."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, send_ext

from dledger.errors import BusyError
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import MAX_DELIVERIES, Revivals
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_remoting.record import MAX_PROPERTIES_BYTES, iter_records
from tests.broker.features.pop.pop_calls import (
    ACK,
    FOUND,
    HIDDEN_S,
    POP,
    ask,
    pop,
    pop_ext,
    retry_of,
    table_of,
    wait,
    with_group,
    with_revivals,
)


class Hindrance:
    """What becomes of the commands that create or delete topics, while it is there."""

    def __init__(self, broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uncreated: set[str] = set()
        self.deletions: list[Done] = []
        """Deletions that are in flight until they are called."""
        self._stage = broker.memory.machine.overlay.stage_command
        monkeypatch.setattr(broker.memory.machine.overlay, "stage_command", self.stage_command)

    def stage_command(self, command: Command, done: Done, *, privileged: bool = False) -> None:
        if isinstance(command, PutTopic) and command.config.topic_name in self.uncreated:
            done(BusyError("busy"))
        elif isinstance(command, DeleteTopic):
            self.deletions.append(done)
        else:
            self._stage(command, done, privileged=privileged)


@pytest.fixture
def broker(make_broker: MakeBroker) -> ServedBroker:
    return with_revivals(with_group(make_broker(topics=("T1", "T2"))))


@pytest.fixture
def hindrance(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> Hindrance:
    return Hindrance(broker, monkeypatch)


def pop_many_and_one_later(broker: ServedBroker, client: FakeClient) -> None:
    """As many deliveries of T1 as one look takes, and some more; a second later one of T2."""
    for number in range(MAX_DELIVERIES + 10):
        client.send_message("T1", b"%d" % number)
        assert len(pop(client, maxMsgNums="1")) == 1
    wait(broker, 1)
    client.send_message("T2", b"later")
    assert len(pop(client, "T2")) == 1


def test_what_comes_later_does_not_wait_for_a_retry_topic_that_cannot_be_created(
    broker: ServedBroker, client: FakeClient, hindrance: Hindrance
) -> None:
    hindrance.uncreated = {retry_of()}
    pop_many_and_one_later(broker, client)
    wait(broker, HIDDEN_S + 2)
    assert (pop(client), [again.body for again in pop(client, "T2")]) == ([], [b"later"])
    hindrance.uncreated = set()
    wait(broker, 3)
    again = [message.body for _ in range(4) for message in pop(client)]
    assert sorted(again, key=int) == [b"%d" % number for number in range(MAX_DELIVERIES + 10)]


def test_what_comes_later_does_not_wait_for_dead_letters_that_cannot_be_created(
    broker: ServedBroker, client: FakeClient, hindrance: Hindrance
) -> None:
    with_group(broker, "SPENT", retry_max_times=0)
    hindrance.uncreated = {"%DLQ%SPENT"}
    for number in range(MAX_DELIVERIES + 10):
        client.send_message("T1", b"%d" % number)
        assert len(pop(client, consumerGroup="SPENT", maxMsgNums="1")) == 1
    wait(broker, 1)
    client.send_message("T2", b"later")
    assert len(pop(client, "T2")) == 1
    wait(broker, HIDDEN_S + 2)
    assert [again.body for again in pop(client, "T2")] == [b"later"]


def test_what_comes_later_does_not_wait_for_the_deletion_of_a_topic(
    broker: ServedBroker, client: FakeClient, hindrance: Hindrance
) -> None:
    pop_many_and_one_later(broker, client)
    broker.memory.delete_topic("T1")
    wait(broker, HIDDEN_S + 2)
    assert [again.body for again in pop(client, "T2")] == [b"later"]
    (job,) = broker.service.parts[PopRequests].jobs
    assert isinstance(job, Revivals)
    assert (job.unreadable, table_of(broker).open_count) == (0, MAX_DELIVERIES + 11)
    hindrance.deletions.pop()(BusyError("busy"))
    wait(broker, 3)
    again = [message.body for _ in range(4) for message in pop(client)]
    assert sorted(again, key=int) == [b"%d" % number for number in range(MAX_DELIVERIES + 10)]


def test_what_was_popped_before_a_node_leads_stays_hidden_for_a_while(broker: ServedBroker, client: FakeClient) -> None:
    """1. A message is popped. 2. Another leader begins, which does not know since when it is hidden. 3. Group time says
    that its time is over.
    """
    client.send_message("T1", b"a")
    pop(client, invisibleTime="5000")
    wait(broker, 1)
    broker.memory.node.step_down()
    broker.memory.node.lead()
    broker.group.on_leadership(broker.memory.machine.leadership)
    wait(broker, 9)
    assert pop(client) == []
    wait(broker, 2)
    assert [again.body for again in pop(client)] == [b"a"]


def test_a_message_with_as_many_properties_as_a_send_allows_comes_again_with_its_topic_changed_and_nothing_else(
    broker: ServedBroker, client: FakeClient
) -> None:
    sizes = range(MAX_PROPERTIES_BYTES, 0, -1)
    sent = (client.call(10, send_ext("T1", properties=f"k\x01{'v' * size}\x02"), b"a") for size in sizes)
    assert next(answer for answer in sent if answer.code == FOUND)
    (first,) = iter_records(ask(client, POP, pop_ext()).body)
    wait(broker, HIDDEN_S + 2)
    answer = ask(client, POP, pop_ext())
    (again,) = iter_records(answer.body)
    assert (again.topic, again.reconsume_times) == (retry_of(), 1)
    assert (again.body, again.properties, again.born_timestamp) == (b"a", first.properties, first.born_timestamp)
    point = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} 0 1 broker-a 0 0"
    place = {"consumerGroup": "CG", "topic": retry_of(), "queueId": "0", "extraInfo": point, "offset": "0"}
    assert client.call(ACK, place).code == FOUND
    assert table_of(broker).open_count == 0
