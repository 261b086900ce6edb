"""Shares of queues: all members compute the same, and every queue belongs to one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.shares import average_share, circle_share
from dledger_remoting.topics import MessageQueue

QUEUES = [MessageQueue(f"broker-{name}", queue_id, "T1") for name in "ab" for queue_id in range(4)]
MEMBERS = st.sets(st.text(max_size=3), min_size=1, max_size=12)


@given(MEMBERS, st.integers(0, len(QUEUES)), st.sampled_from([average_share, circle_share]))
def test_each_queue_has_one_member_and_shares_differ_by_at_most_one(members, count, share) -> None:
    queues = QUEUES[:count]
    shares = [share(member, members, reversed(queues)) for member in members]
    assert sorted(queue for own in shares for queue in own) == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_are_those_of_rocketmq() -> None:
    members = ["c", "a", "b"]
    of = [[(queue.broker_name[-1], queue.queue_id) for queue in average_share(m, members, QUEUES)] for m in "abc"]
    assert of == [[("a", 0), ("a", 1), ("a", 2)], [("a", 3), ("b", 0), ("b", 1)], [("b", 2), ("b", 3)]]
    of = [[(queue.broker_name[-1], queue.queue_id) for queue in circle_share(m, members, QUEUES)] for m in "abc"]
    assert of == [[("a", 0), ("a", 3), ("b", 2)], [("a", 1), ("b", 0), ("b", 3)], [("a", 2), ("b", 1)]]
    assert (average_share("d", members, QUEUES), circle_share("d", members, QUEUES)) == ([], [])
