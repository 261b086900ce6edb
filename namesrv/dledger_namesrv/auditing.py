"""Audit of a name server: changes by requests other than registrations, and their outcome."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final, TypeAlias

from dledger_base.audit_log import AuditLog
from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import RemotingError
from dledger_remoting.signatures import ACCESS_KEY_FIELD, without_signature

from .answers import Behind

Answer: TypeAlias = RemotingCommand | Coroutine[None, None, RemotingCommand]
AUDITED: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.DLEDGER_FORGET_GROUP,
    }
)
_BODY_CHARS: Final = 1_000


class Audited:
    """Handles requests of `AUDITED` and writes a line for each to `log`.

    `signs` says that requests must be signed. Otherwise their account is not checked, and is logged as `nobody`.
    """

    def __init__(self, log: AuditLog, *, signs: bool) -> None:
        self.log = log
        self._signs = signs

    def handled(self, request: RemotingCommand, address: str, handle: Callable[[], Answer]) -> Answer:
        """Return what `handle` returns, or raise what it raises."""
        try:
            answer = handle()
        except RemotingError as error:
            self._write(request, address, _format_refusal(error))
            raise
        if not isinstance(answer, RemotingCommand):
            return Behind(answer, partial(self._audit_when_done, request, address))
        self._write(request, address, _format_outcome(answer))
        return answer

    async def _audit_when_done(
        self, request: RemotingCommand, address: str, work: Coroutine[None, None, RemotingCommand]
    ) -> RemotingCommand:
        try:
            answer = await work
        except RemotingError as error:
            self._write(request, address, _format_refusal(error))
            raise
        self._write(request, address, _format_outcome(answer))
        return answer

    def _write(self, request: RemotingCommand, address: str, outcome: str) -> None:
        fields = without_signature(request.ext)
        if request.body:
            fields["body"] = request.body[:_BODY_CHARS].decode(errors="replace")
        who = request.ext.get(ACCESS_KEY_FIELD, "nobody") if self._signs else "nobody"
        self.log.write(who, address, request_code_name(request.code), outcome, None, fields)


def _format_refusal(error: RemotingError) -> str:
    return f"{int(error.code)} {error.remark}"


def _format_outcome(answer: RemotingCommand) -> str:
    return "done" if answer.code == 0 else str(answer.code)
