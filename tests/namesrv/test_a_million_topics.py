"""No work of a name server that knows 1,000,000 topics holds up its event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from served_names import registration

from dledger_namesrv import known
from dledger_namesrv.table import RouteTable
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import DataVersion, encode_registration, registration_steps
from tests.slowness import slowness

pytestmark = pytest.mark.long

GROUPS, TOPICS = 16, 62_500
MAX_TURN_S = 0.05
LONGER_TURNS = 3
"""Number of turns of each kind that may take longer.

A dict is copied as it grows: that of all topics at 350,000 and at 700,000 entries. A shared processor also counts the
work of others into a turn now and then.
"""


class Turns:
    """Longest turns of each kind of work, in processor time of this thread."""

    def __init__(self) -> None:
        self._longest_s: dict[str, list[float]] = defaultdict(list)

    @property
    def longest_s(self) -> dict[str, float]:
        """Return the longest turn of each kind of work, apart from the `LONGER_TURNS`."""
        return {what: took[0] for what, took in self._longest_s.items() if len(took) > LONGER_TURNS}

    def one(self, what: str, work: Callable[[], Any]) -> Any:
        began = time.thread_time()
        try:
            return work()
        finally:
            self._longest_s[what] = sorted([*self._longest_s[what], time.thread_time() - began])[-LONGER_TURNS - 1 :]

    def all(self, what: str, steps: Any) -> Any:
        while True:
            try:
                self.one(what, lambda: next(steps))
            except StopIteration as end:
                return end.value


def test_no_turn_with_many_queues_takes_long(request: pytest.FixtureRequest) -> None:
    table, turns = RouteTable(first_version=1), Turns()

    def register(group: int, counter: int) -> None:
        topics = [f"topic-{group}-{number}" for number in range(TOPICS)]
        body = encode_registration(registration(topics, DataVersion(1, 1, counter)))
        header = RegisterBrokerHeader(f"group-{group}", f"127.0.0.1:{group}", "C", "", 0, topics_complete=True)
        decoded = turns.all("decoding of a registration", registration_steps(body))
        steps = table.register_steps(header, decoded, now_ms=0, connection=group)
        assert turns.all("registration", steps).refusal == ""

    gc.disable()  # the test creates so many objects at once that garbage collections would fall into its turns
    request.addfinalizer(gc.enable)
    for group in range(GROUPS):
        register(group, 1)
    assert table.topic_count == GROUPS * TOPICS
    register(3, 2)

    async def copy() -> Any:
        return await known._copy_groups(table)

    with asyncio.Runner() as runner:
        groups = runner.run(copy())
    for name in table.known_names():
        turns.one("copy of a group", partial(table.known_group, name))
    turns.all("piece of a file", known._encode_pieces(groups))
    assert len(turns.all("list of topics", table.routes.topics(include_absent=True))) == GROUPS * TOPICS
    assert turns.all("list by flags", table.routes.topics_by_flags(required=1)) == []
    assert turns.all("write permission", table.write_permission_steps("group-5", writable=False)) == TOPICS
    turns.one("lost leader", lambda: table.drop_connection(7))
    while turns.one("tidying", table.tidy):
        pass
    assert table.topic_count == (GROUPS - 1) * TOPICS
    register(7, 1)
    turns.one("silence", lambda: table.expire(10_000_000))
    assert (table.topics(), table.absent_group_count) == ([], GROUPS)
    limit_s = MAX_TURN_S * slowness()
    assert not {what: took_s for what, took_s in turns.longest_s.items() if took_s > limit_s}, turns.longest_s
