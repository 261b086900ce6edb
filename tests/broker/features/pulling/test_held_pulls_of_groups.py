"""Held pulls by group: a group that changes costs what it holds, however many others wait."""

from types import SimpleNamespace
from typing import Any

from dledger_broker.features.pulling.longpoll import HeldPull, LongPolls
from dledger_broker.kernel.requests import WaitsCounted
from dledger_broker.testing import FakeEnvironment


class Fields:
    """The fields of a pull; says how often its group was looked at."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.looked_at = 0

    @property
    def consumer_group(self) -> str:
        self.looked_at += 1
        return self._group


class Origin(WaitsCounted):
    is_open = True

    def __init__(self) -> None:
        self.in_flight, self.held = 1, 0


def held(polls: LongPolls, group: str, queue: Any) -> HeldPull:
    request: Any = SimpleNamespace(origin=Origin())
    fields: Any = Fields(group)
    pull = HeldPull(request, fields, queue, 0, None, 10.0)
    polls.hold(pull)
    return pull


def test_a_change_of_one_group_looks_at_no_pull_of_another() -> None:
    answered: list[HeldPull] = []
    polls = LongPolls(FakeEnvironment(), lambda _: False, answered.append, lambda: None)
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
