"""Schedules of messages that consumers send back, through failovers, until they are dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import dead_letter_topic, retry_topic
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.connection import BROKER_GROUP
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.retriers import LEVELS_S, hear
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers
from dledger_sim.brokers.sent_back import copy_in

RETRIES: Final = retry_topic(GROUP_NAME)
LETTERS: Final = dead_letter_topic(GROUP_NAME)


def pulled(brokers: Brokers, topic: str) -> list[MessageRecord]:
    """Return the messages that a consumer pulls from a topic."""
    pull = {"consumerGroup": GROUP_NAME, "topic": topic, "queueId": "0", **pull_fields(0, 8)}
    answers = brokers.ask(brokers.connect(brokers.leader), RequestCode.PULL_MESSAGE, pull)
    brokers.run(0.3)
    answer = answers[0]
    return list(iter_records(answer.body)) if answer is not None and answer.code == ResponseCode.SUCCESS else []


def send_back(
    brokers: Brokers,
    record: MessageRecord,
    *,
    through: str,
    level: int = 0,
    policy_s: float = 0.0,
    limit: int = 16,
    wait_s: float = 0.7,
) -> list[int]:
    """Send a message back, and return the codes of the answers that come within `wait_s`: one or none.

    The judge then expects the message again after the delay of `level`. For level 0, the delay is `policy_s`, which the
    group's retry policy must have.
    """
    topic = LETTERS if record.reconsume_times >= limit else RETRIES
    copy = copy_in(topic, operation_of(record.body), record.reconsume_times + 1)
    assert copy is not None
    truth = brokers.workload.truth.sent_back
    truth.ask(copy, brokers.scheduler.now + LEVELS_S.get(level, policy_s))
    fields = {
        "offset": str(record.physical_offset),
        "group": GROUP_NAME,
        "delayLevel": str(level),
        "maxReconsumeTimes": str(limit),
    }
    answers = brokers.ask(brokers.connect(through), RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    brokers.run(wait_s)
    for answer in answers:
        hear(truth, copy, answer)
    return [answer.code for answer in answers if answer is not None]


def message_that_comes_again_and_is_a_dead_letter_then() -> None:
    """Check that a message is redelivered after its delay, names its origin, and finally becomes a dead letter.

    Seeds, too, would notice if deliveries were not counted. But they know messages by their bodies, and do not check
    the original message id.
    """
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    first = pulled(brokers, TOPIC)[0]
    assert send_back(brokers, first, through=brokers.follower, level=1, limit=1) == [ResponseCode.SUCCESS]
    assert pulled(brokers, RETRIES) == []
    brokers.run(1.5)
    [again] = pulled(brokers, RETRIES)
    properties = parse_properties(again.properties)
    assert (again.body, again.reconsume_times, properties[RETRY_TOPIC]) == (first.body, 1, TOPIC)
    assert send_back(brokers, again, through=brokers.leader, level=1, limit=1) == [ResponseCode.SUCCESS]
    [letter] = pulled(brokers, LETTERS)
    assert (letter.body, letter.reconsume_times) == (first.body, 2)
    assert parse_properties(letter.properties)[ORIGIN_MESSAGE_ID] == properties[ORIGIN_MESSAGE_ID]
    brokers.run(3.0)
    assert len(pulled(brokers, RETRIES)) == 1


def message_that_comes_again_whoever_leads_then() -> None:
    """Check that a new leader delivers a message that was sent back to the old leader, and delivers it only once.

    1. A message is sent back.
    2. The leader dies.
    3. The next leader delivers it, once.
    """
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    first = pulled(brokers, TOPIC)[0]
    assert send_back(brokers, first, through=brokers.leader, level=2) == [ResponseCode.SUCCESS]
    brokers.group.kill(brokers.leader)
    brokers.run(8.0)
    assert [record.reconsume_times for record in pulled(brokers, RETRIES)] == [1]


def message_that_a_majority_stores_late() -> None:
    """Check that a message is stored late and redelivered, and that its request was not answered as refused before.

    1. Followers need longer for a sync than the leader waits for a majority.
    2. The answer is that the outcome is unknown.
    3. The message is stored, and redelivered.

    Seeds hardly meet this: a majority would have to need longer than 2.5 s while the leader still hears it. Of the
    clients' time limits, 0.5, 1.5 or 4 s, only the last is longer than that.
    """
    brokers = Brokers()
    brokers.found_group(brokers.connect(brokers.leader))
    first, second, _ = pulled(brokers, TOPIC)
    assert send_back(brokers, first, through=brokers.leader, level=1) == [ResponseCode.SUCCESS]
    brokers.run(2.0)
    late_s = brokers.workload.brokers.quorum_timeout_ms / 1000 + 0.5
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, late_s)
    answered = send_back(brokers, second, through=brokers.leader, level=1, wait_s=late_s)
    assert ResponseCode.SUCCESS not in answered
    brokers.run(6 * late_s)
    assert len(pulled(brokers, RETRIES)) == 2


def message_that_waits_as_its_group_says() -> None:
    """Check that a group's retry policy holds at a later leader, to which the message is sent back.

    No seed meets this: none of its groups has its own policy.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [4000]}}
    body = msgspec.json.encode({"groupName": GROUP_NAME, "groupRetryPolicy": policy})
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, body)
    brokers.run(0.5)
    brokers.hand_over(brokers.follower)
    brokers.run(2.0)
    first = pulled(brokers, TOPIC)[0]
    assert send_back(brokers, first, through=brokers.leader, policy_s=4.0) == [ResponseCode.SUCCESS]
    brokers.run(2.5)
    assert pulled(brokers, RETRIES) == []
    brokers.run(2.0)
    assert len(pulled(brokers, RETRIES)) == 1


def message_that_an_orderly_consumer_gives_up() -> None:
    """Check that a send to the retry topic of a group with queue locks becomes a dead letter, also at a new leader.

    The new leader has no leases of the locks.

    No seed meets this: the group that locks queues sends no retries there, and the other groups lock no queues.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    queue = {"topic": TOPIC, "brokerName": BROKER_GROUP, "queueId": 0}
    body = msgspec.json.encode({"consumerGroup": GROUP_NAME, "clientId": "anna", "mqSet": [queue]})
    answers = brokers.ask(connection, RequestCode.LOCK_BATCH_MQ, {}, body)
    brokers.run(0.5)
    assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]
    brokers.hand_over(brokers.follower)
    brokers.run(2.0)
    workload = brokers.workload
    code, ext, given_up = workload.make_send(RETRIES, 0, [workload.next_operation()], batch=False)
    brokers.ask(brokers.connect(brokers.leader), code, ext, given_up)
    brokers.run(0.5)
    assert (len(pulled(brokers, LETTERS)), pulled(brokers, RETRIES)) == (1, [])


RETRY_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    message_that_comes_again_and_is_a_dead_letter_then,
    message_that_comes_again_whoever_leads_then,
    message_that_a_majority_stores_late,
    message_that_waits_as_its_group_says,
    message_that_an_orderly_consumer_gives_up,
)
