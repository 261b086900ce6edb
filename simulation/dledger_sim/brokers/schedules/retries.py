"""Messages that consumers send back, through failovers, until they are dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import dead_letter_topic, retry_topic
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers

RETRIES: Final = retry_topic(GROUP_NAME)
LETTERS: Final = dead_letter_topic(GROUP_NAME)


def pulled(brokers: Brokers, topic: str) -> list[MessageRecord]:
    """What a consumer gets of a topic."""
    pull = {"consumerGroup": GROUP_NAME, "topic": topic, "queueId": "0", **pull_fields(0, 8)}
    answers = brokers.ask(brokers.connect(brokers.leader), RequestCode.PULL_MESSAGE, pull)
    brokers.run(0.3)
    answer = answers[0]
    return list(iter_records(answer.body)) if answer is not None and answer.code == ResponseCode.SUCCESS else []


def send_back(brokers: Brokers, record: MessageRecord, *, through: str, level: int, limit: int = 16) -> None:
    """Have a message taken back; it is to come again after the delay of a level."""
    fields = {
        "offset": str(record.physical_offset),
        "group": GROUP_NAME,
        "delayLevel": str(level),
        "maxReconsumeTimes": str(limit),
    }
    answers = brokers.ask(brokers.connect(through), RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    brokers.run(0.7)
    assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]


def message_that_comes_again_and_is_a_dead_letter_then() -> None:
    """It comes when its delay is over, says whose it was, and goes to the dead letters once that was often enough."""
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    first = pulled(brokers, TOPIC)[0]
    send_back(brokers, first, through=brokers.follower, level=1, limit=1)
    assert pulled(brokers, RETRIES) == []
    brokers.run(1.5)
    [again] = pulled(brokers, RETRIES)
    properties = parse_properties(again.properties)
    assert (again.body, again.reconsume_times, properties[RETRY_TOPIC]) == (first.body, 1, TOPIC)
    send_back(brokers, again, through=brokers.leader, level=1, limit=1)
    [letter] = pulled(brokers, LETTERS)
    assert (letter.body, letter.reconsume_times) == (first.body, 2)
    assert parse_properties(letter.properties)[ORIGIN_MESSAGE_ID] == properties[ORIGIN_MESSAGE_ID]
    brokers.run(3.0)
    assert len(pulled(brokers, RETRIES)) == 1


def message_that_comes_again_whoever_leads_then() -> None:
    """1. A message is taken back. 2. The leader dies. 3. The next one delivers it, once."""
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    send_back(brokers, pulled(brokers, TOPIC)[0], through=brokers.leader, level=2)
    brokers.group.kill(brokers.leader)
    brokers.run(8.0)
    assert [record.reconsume_times for record in pulled(brokers, RETRIES)] == [1]


RETRY_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    message_that_comes_again_and_is_a_dead_letter_then,
    message_that_comes_again_whoever_leads_then,
)
