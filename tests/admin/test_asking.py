"""Commands that destroy something show its extent and ask. Scripts pass --yes, and are refused without it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from command_fakes import QUEUE, FakeAdmin, answering, as_json, dledger, use_fakes

from dledger_admin import asking
from dledger_admin.cli import main
from dledger_client import QueueStatus, SubscriptionGroupConfig

COMMANDS = {
    "topic delete": ("topic", "delete", "orders"),
    "group delete": ("group", "delete", "billing"),
    "group reset": ("group", "reset", "billing", "--topic", "orders", "--to", "beginning"),
    "group skip": ("group", "skip", "billing", "--topic", "orders"),
    "cluster forget": ("cluster", "forget", "broker-a"),
}
each_command = pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(monkeypatch)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "is_at_terminal", lambda: True)


def answered(words: tuple[str, ...], answer: str) -> Result:
    return CliRunner().invoke(main, list(words), input=answer)


@each_command
def test_without_a_terminal_a_deletion_needs_yes_and_a_dry_run_lists_what_goes(words: tuple[str, ...]) -> None:
    done = answered(words, "y\n")
    assert (done.exit_code, done.stdout, FakeAdmin.calls) == (2, "", [])
    assert "no terminal to ask at: give --yes, or --dry-run to see what goes" in done.stderr
    assert dledger(*words, "--dry-run").startswith("this goes:\n  ")
    (line, *_) = as_json(*words, "--dry-run")["would_go"]
    assert words[2] in line
    assert FakeAdmin.calls == []
    done = answered((*words, "--yes"), "")
    assert (done.exit_code, done.stderr, len(FakeAdmin.calls)) == (0, "", 1)


@each_command
@pytest.mark.usefixtures("terminal")
def test_a_terminal_user_must_confirm_a_deletion_with_yes(words: tuple[str, ...]) -> None:
    refused = answered(words, "n\n")
    assert (refused.exit_code, FakeAdmin.calls) == (1, [])
    assert "this goes:" in refused.stderr
    assert "the answer was no: nothing was changed" in refused.stderr
    assert answered(words, "\n").exit_code == 1, "no is the default"
    assert FakeAdmin.calls == []
    done = answered(words, "y\n")
    assert done.exit_code == 0, done.output
    assert len(FakeAdmin.calls) == 1


def test_a_copy_of_offsets_asks_only_if_offsets_of_the_target_change(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = {"billing": 8, "audit": 5}

    async def progress(_: FakeAdmin, name: str, topic: str | None = None) -> list[QueueStatus]:
        return [QueueStatus(QUEUE, 3, 10, statuses.get(name))]

    monkeypatch.setattr(
        FakeAdmin, "groups", answering({name: SubscriptionGroupConfig(name, retry_max_times=3) for name in statuses})
    )
    monkeypatch.setattr(FakeAdmin, "progress", progress)
    words = ("group", "clone", "billing", "audit")
    refused = answered(words, "y\n")
    assert (refused.exit_code, FakeAdmin.calls) == (2, [])
    (line,) = as_json(*words, "--dry-run")["would_go"]
    assert line == "offset 5 of audit in queue broker-a/1 of orders: it goes on at 8, as billing"
    assert FakeAdmin.calls == []
    assert answered((*words, "--yes"), "").exit_code == 0
    assert answered(("group", "clone", "billing", "new"), "").exit_code == 0, "a new group has no offsets to lose"
    made = ("create group", "new", True, 3)
    assert FakeAdmin.calls == [("clone", "billing", "audit", None), made, ("clone", "billing", "new", None)]


def test_yes_and_a_dry_run_contradict_each_other() -> None:
    done = answered(("topic", "delete", "orders", "--yes", "--dry-run"), "")
    assert (done.exit_code, FakeAdmin.calls) == (2, [])
    assert "--yes and --dry-run contradict each other" in done.stderr


def test_a_dry_run_counts_the_affected_messages() -> None:
    assert as_json("topic", "delete", "orders", "--dry-run")["would_go"] == [
        "topic orders with 1 queues and the 7 messages that they keep"
    ]
    (where,) = as_json("group", "skip", "billing", "--topic", "orders", "--dry-run")["would_go"]
    assert where == "offset 8 of billing in queue broker-a/1 of orders: it goes on at 10 and skips 2 messages"
    (where,) = as_json("group", "reset", "billing", "--topic", "orders", "--to", "offset:3", "--dry-run")["would_go"]
    assert where.endswith("it goes on at 3, and 5 messages come again")
