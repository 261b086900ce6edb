"""`dledger dlq` without a cluster: the values that its options refuse, and its messages."""

from __future__ import annotations

import msgspec
import pytest
from command_fakes import message, refused

from dledger_admin.commands.dlq import _render_letters, _render_resent
from dledger_admin.commands.message_format import exit_code
from dledger_admin.operations.dead_letters import Failure, Resending, Resent, counted
from dledger_admin.operations.messages import view

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
def test_a_wrong_dlq_command_is_refused_with_the_reason(words: tuple[str, ...], said: str) -> None:
    assert said in refused("dlq", *words, code=2)


def test_a_resend_reports_resent_and_failed_dead_letters() -> None:
    result = Resent("G", 1, 2, [Failure("ID", "orders", "it does not exist")])
    assert _render_resent(result).splitlines() == [
        "1 dead letter of G resent, 2 were resent before",
        "ID not sent to orders: it does not exist",
    ]
    assert [counted(number) for number in (0, 1, 2)] == ["0 dead letters", "1 dead letter", "2 dead letters"]


def test_a_dead_letter_is_shown_with_its_place_and_its_origin() -> None:
    shown = _render_letters("G", [view(message())]).splitlines()
    assert shown[0] == "%DLQ%G/broker-a/1 offset 7"
    unreadable = [view(message(fault="no zlib stream"))]
    assert (exit_code([view(message())]), exit_code(unreadable)) == (0, 1)
    assert _render_letters("G", unreadable).endswith("body        cannot be read: no zlib stream")
    assert shown[-5:-2] == ["  from        orders", "  was         -", "  delivered   0 times"]
    assert shown[-2:] == ["  failed by   -", "  body        hello"]
    failed = msgspec.structs.replace(message(), properties={"__FAILURE_REASON": "ValueError: no price"})
    assert "  failed by   ValueError: no price" in _render_letters("G", [view(failed)]).splitlines()


async def test_a_resend_reports_an_unreadable_dead_letter_and_continues() -> None:
    resending = Resending(None, None, Resent("G"), None, again=False)  # type: ignore[arg-type]
    await resending.resend([message(fault="no zlib stream")])
    assert resending.result.failed == [Failure("OFFSET", "orders", "its body cannot be read: no zlib stream")]
