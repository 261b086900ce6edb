"""`dledger dlq` without a cluster: what its options refuse, and what it says."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from command_fakes import message

from dledger_admin.cli import main
from dledger_admin.commands.dead_letters import Failure, Resent, counted
from dledger_admin.commands.dlq import _render_letters, _render_resent
from dledger_admin.commands.message_format import view

ID = "7F00000100002A9F0000000000000000"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resend", "G"), "either --all or --id"),
        (("resend", "G", "--all", "--id", ID), "either --all or --id"),
        (("resend", "G", "--id", ID, "--from", "-5"), "--from and --to are for --all"),
        (("resend", "G", "--all", "--from", "yesterday"), "'yesterday' is no time"),
        (("export", "G", "--to", "99999999999999"), "is still to come"),
        (("show", "a b"), "may only contain"),
        (("show", "G", "-n", "0"), "'-n'"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(words: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(main, ["dlq", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_what_was_done_is_told() -> None:
    result = Resent("G", 1, 2, [Failure("ID", "orders", "it does not exist")])
    assert _render_resent(result).splitlines() == [
        "1 dead letter of G resent, 2 were resent before",
        "ID not sent to orders: it does not exist",
    ]
    assert [counted(number) for number in (0, 1, 2)] == ["0 dead letters", "1 dead letter", "2 dead letters"]


def test_a_dead_letter_is_shown_with_where_it_is_and_was() -> None:
    shown = _render_letters("G", [view(message())]).splitlines()
    assert shown[0] == "%DLQ%G/broker-a/1 offset 7"
    assert shown[-4:] == ["  from        orders", "  was         -", "  delivered   0 times", "  body        hello"]
