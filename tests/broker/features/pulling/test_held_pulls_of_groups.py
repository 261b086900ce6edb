"""Held pulls by group: a change of a group costs only what that group holds, however many others wait."""

from types import SimpleNamespace
from typing import Any

from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.kernel.held_memory import HeldMemory
from dledger_broker.kernel.requests import WaitsCounted
from dledger_broker.testing import FakeEnvironment


class Fields:
    """Fields of a pull, with a count of how often the group was looked at."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.looked_at = 0

    @property
    def consumer_group(self) -> str:
        self.looked_at += 1
        return self._group


class Origin(WaitsCounted):
    is_open, in_flight, held = True, 1, 0


def held(polls: LongPolls, group: str, queue: Any) -> HeldPull:
    request: Any = SimpleNamespace(header=b"", body=b"", origin=Origin())
    fields: Any = Fields(group)
    pull = HeldPull(request, fields, queue, 0, None, 10.0)
    polls.hold(pull)
    return pull


def test_releasing_pulls_of_a_group_does_not_examine_pulls_of_other_groups() -> None:
    answered: list[HeldPull] = []
    polls = LongPolls(FakeEnvironment(), HeldMemory(), lambda _: False, answered.append, lambda: None)
    queue = object()
    other = held(polls, "other", queue)
    mine = [held(polls, "mine", queue), held(polls, "mine", object())]
    polls.arrived([queue])  # type: ignore[list-item]
    looked_at = other.fields.looked_at  # type: ignore[attr-defined]
    polls.release_groups({"mine"})
    assert sorted(map(id, answered)) == sorted(map(id, mine))
    assert other.fields.looked_at == looked_at  # type: ignore[attr-defined]
    assert len(polls) == 1
    polls.release_groups({"mine", "other"})
    assert answered[-1] is other
    assert len(polls) == 0
