"""Schedules of commits of offsets that are on their way for long, and of questions that meet them."""

from __future__ import annotations

from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers, offset_fields


def question_behind_a_commit_under_way() -> None:
    """Check that a question after a commit on one connection returns that commit, even while the commit is in flight.

    Seeds hardly meet this: a leader that confirms itself waits for the same followers as the commit does. Here their
    disks are slow, so that they answer heartbeats at once and delay the commit.

    1. A consumer commits. The commit is proposed, the followers write it.
    2. The consumer asks for its offset. A majority confirms the leader before it has the commit.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    for follower in set(brokers.group.nodes) - {brokers.leader}:
        brokers.slow_down_disk(follower, 1.0)
    brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.4)
    assert (GROUP_NAME, TOPIC, 0) not in brokers.workload.truth.committed, "it is still on its way"
    question = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0"}
    answers = brokers.ask(connection, RequestCode.QUERY_CONSUMER_OFFSET, question)
    brokers.run(4.0)
    assert [(answer.code, answer.ext.get("offset")) for answer in answers if answer] == [(ResponseCode.SUCCESS, "2")]


def commit_while_the_log_is_busy() -> None:
    """Check that an unanswered commit that the log refuses at first is finally in the log.

    Seeds hardly meet this: the queue must see no later commit, which would replace this one.
    """
    brokers = Brokers()
    connection = brokers.connect(brokers.leader)
    brokers.found_group(connection)
    brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.busy_for(0.5)
    assert (GROUP_NAME, TOPIC, 0) not in brokers.workload.truth.committed, "the log took nothing"
    brokers.run(2.0)
    assert brokers.workload.truth.committed.get((GROUP_NAME, TOPIC, 0)) == 2


QUESTION_SCHEDULES: Final = (question_behind_a_commit_under_way, commit_while_the_log_is_busy)
