"""Request modes of consumer groups, which are set (401), read (402) and recorded. Each is a register."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Final

from dledger_client import ClientError
from dledger_client.cluster.core import ClientCore, check_response
from dledger_client.errors import refusal
from dledger_remoting.assignments import RequestMode, RequestModeBody, RequestModesBody
from dledger_remoting.bodies import decode_body, encode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import RemotingError

from .base import NodeAddresses, WorkloadContext
from .sending import end_with_error

_OPERATIONS_PER_NAME: Final = 60
_UNKNOWN_PER_NAME: Final = 6
"""Maximum number of operations of unknown outcome for one name. Each may double the work of the checker."""
_DEADLINE_SECONDS: Final = 5.0


class ModeNames:
    """Names of consumer groups whose mode is set in one broker group: the present name, and earlier ones.

    After a number of operations a new name follows, so that the search of the checker stays short.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._numbers = count()
        self._operations_left = 0
        self._unknown_outcomes: Counter[str] = Counter()
        self.used: list[str] = []

    def pick(self) -> str:
        """Return the name for the next operation."""
        if not self._operations_left or self._unknown_outcomes[self.used[-1]] >= _UNKNOWN_PER_NAME:
            self.used.append(f"{self._prefix}-{next(self._numbers)}")
            self._operations_left = _OPERATIONS_PER_NAME
        self._operations_left -= 1
        return self.used[-1]

    def unknown(self, name: str) -> None:
        """Note that the outcome of an operation is unknown."""
        self._unknown_outcomes[name] += 1


class RecordedModes:
    """Modes of one topic, set and read by any process of a workload."""

    def __init__(self, ctx: WorkloadContext, workload: str, core: ClientCore, topic: str) -> None:
        self._recorder = ctx.recorder
        self._workload = workload
        self._core = core
        self._topic = topic

    async def write(
        self,
        process: str,
        broker_group: str,
        group: str,
        node: NodeAddresses | None,
        mode: RequestMode,
        number: int,
    ) -> bool:
        """Set a mode (401), without another attempt if the outcome is unknown. Return True if the answer is success."""
        invocation = self._recorder.invoke(self._workload, process, "write", f"{group}@{broker_group}", [mode, number])
        body = encode_body(RequestModeBody(self._topic, group, mode, number))
        try:
            await self._request(RequestCode.SET_MESSAGE_REQUEST_MODE, broker_group, node, body, idempotent=False)
        except ClientError as error:
            end_with_error(invocation, error)
            return False
        invocation.ok()
        return True

    async def read(
        self,
        process: str,
        broker_group: str,
        group: str,
        node: NodeAddresses | None,
        *,
        seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        """Read a group's mode (402). A read without an answer is recorded as failed, because it changes nothing."""
        invocation = self._recorder.invoke(self._workload, process, "read", f"{group}@{broker_group}")
        try:
            body = await self._request(
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, broker_group, node, b"", idempotent=True, seconds=seconds
            )
        except ClientError as error:
            invocation.fail(str(error))
            return
        found = decode_body(RequestModesBody, body).message_request_mode_map.get(self._topic, {}).get(group)
        invocation.ok(None if found is None else [found.mode, found.pop_share_queue_num])

    async def _request(
        self,
        code: int,
        broker_group: str,
        node: NodeAddresses | None,
        body: bytes,
        *,
        idempotent: bool,
        seconds: float = _DEADLINE_SECONDS,
    ) -> bytes:
        """Send a request to a node, or to the leader if `node` is None. Raises `ClientError`."""
        core, deadline = self._core, self._core.loop.time() + seconds
        try:
            if node is None:
                group = core.routes.group(broker_group)
                answer = await core.call_leader(group, code, {}, body, deadline=deadline, idempotent=idempotent)
            else:
                answer = check_response(await core.call(node.client, code, {}, body, deadline=deadline))
        except RemotingError as error:
            raise refusal(error) from error
        return bytes(answer.body)
