"""Audit of changes by requests: the leader that handles a change request writes a line when it is answered.

A feature names its request codes in `Part.audited`, with a function that returns the current state of the request's
subject. This state contains no secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from dledger_base.audit_log import AuditLog
from dledger_broker.kernel.requests import Request
from dledger_remoting.codes import request_code_name
from dledger_remoting.errors import RemotingError

SubjectState: TypeAlias = Callable[[Request], object]
"""Returns the current state of a request's subject, by names, None for a missing subject. May raise `RemotingError`."""
NO_ACCOUNT: Final = "nobody"


class Audit:
    """Writer of a line to `log` for each request with a code in `subject_states`, when it is answered."""

    def __init__(self, log: AuditLog) -> None:
        self.log = log
        self.subject_states: Mapping[int, SubjectState] = {}

    def watch(self, request: Request) -> None:
        """Note the state of a request's subject before the request is handled."""
        read_state = self.subject_states.get(request.code)
        if read_state is not None and request.on_answer is None and self.log.is_open:
            request.on_answer = partial(self._answered, request, read_state, _try_read(read_state, request))

    def _answered(
        self, request: Request, read_state: SubjectState, before: object, code: int, remark: str | None
    ) -> None:
        account = request.sender or NO_ACCOUNT
        operation = request_code_name(request.code)
        outcome = "done" if code == 0 else f"{code} {remark or ''}".strip()
        self.log.write(account, str(request.client_address), operation, outcome, before, _try_read(read_state, request))


def _try_read(read_state: SubjectState, request: Request) -> object:
    try:
        return read_state(request)
    except RemotingError:
        return None  # the request itself is wrong, and its handler will refuse it
