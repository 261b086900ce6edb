"""Pulls below the beginning of the leader's log, answered by a node whose log begins earlier.

The leader checks a pull, commits the offset that it carries, and hands the frame over unchanged. The other node only
reads.

    request   MessagePack array: serialize type, header, body of the pull's frame
    answer    a response frame
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from dledger.environment import Environment
from dledger.log import Log
from dledger.net.requests import RequestChannel
from dledger.net.transport import PeerError
from dledger.types import ReplicaId
from dledger_broker.kernel.earlier_logs import awaited_node, earlier_nodes
from dledger_broker.kernel.requests import Buffer, Origin, Request, Requests, WaitsCounted, request_of
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import decode_command
from dledger_remoting.errors import SystemBusy
from dledger_remoting.frame import Frame, FrameDecoder
from dledger_remoting.hosts import HostAddress

EARLIER_READS_CHANNEL: Final = 4
ANSWER_S: Final = 5.0
"""Time limit for the answer of the other node."""


class _Lent(msgspec.Struct, frozen=True, array_like=True):
    serialize_type: int
    header: bytes
    body: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Lent).decode
_READ: Final = frozenset((ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY))
"""Codes of the answers that a node gives after it has read the queue."""
_NOWHERE: Final = HostAddress("0.0.0.0", 0)


class _LeaderOrigin(WaitsCounted):
    """Origin of a pull that the leader handed over."""

    __slots__ = (
        "_reply", "client_ids", "forward_epoch", "forward_refused", "forward_target", "forwards", "forwards_sent",
        "is_trusted",
    )  # fmt: skip

    address: Final = _NOWHERE
    born_host: Final = bytes(8)
    key: Final = "leader"
    is_forwarded: Final = True
    is_open: Final = True

    def __init__(self, reply: Callable[[bytes], None]) -> None:
        self.client_ids: set[str] = set()
        self.held = self.in_flight = self.forwards = self.forward_epoch = self.forward_refused = 0
        self.forwards_sent: set[int] = set()
        self.forward_target: str | None = None
        self.is_trusted = True
        self._reply = reply

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Send the answer to the leader."""
        self._reply(b"".join(parts))

    def answer_frame(self, frame: bytes) -> None:
        """Send the answer to the leader."""
        self._reply(frame)

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Send the answer to the leader. There is a single frame, because there is a single request."""
        for frame in frames:
            self._reply(frame)

    def settle(self) -> None:
        """Send the leader an empty answer: this node cannot answer."""
        self._reply(b"")

    def refuse(self, term: int) -> None:
        """Send the leader an empty answer: this node cannot answer."""
        _ = term
        self._reply(b"")


class _Asked:
    """Pull that other nodes are asked for, one after the other.

    `failure` says why a node could not answer, None if no node has failed. `without` are the nodes that lack the
    messages.
    """

    __slots__ = ("data", "failure", "not_there", "request", "without")

    def __init__(self, request: Request, not_there: Callable[[], None]) -> None:
        self.request = request
        self.not_there = not_there
        self.data = _encode(_Lent(request.serialize_type, request.header, request.body))
        self.failure: str | None = None
        self.without: set[str] = set()


class EarlierReads:
    """Both ends of the channel between the leader and other nodes.

    `read` reads for another node's client, without checks.
    """

    def __init__(self, log: Log, env: Environment, requests: Requests, read: Callable[[Request], None]) -> None:
        self._log = log
        self._env = env
        self._requests = requests
        self._read = read
        self._channel: RequestChannel | None = None

    def start(self) -> None:
        """Open the channel, once the node has started."""
        self._channel = self._log.request_channel(EARLIER_READS_CHANNEL, self._on_request)

    def ask(self, request: Request, not_there: Callable[[], None]) -> bool:
        """Have another node answer a pull. Return False if no node's log begins earlier.

        `not_there` is called if all these nodes say that they lack the messages, too. A node that is silent, or cannot
        read them now, says nothing about them, so the pull has to come again.
        """
        asked = _Asked(request, not_there)
        return self._ask(asked, earlier_nodes(self._log)) or self._refuse(asked)

    def _refuse(self, asked: _Asked) -> bool:
        """Refuse a pull while a node that may have its messages cannot be asked. Return False if there is none."""
        node_id = awaited_node(self._log, asked.without)
        if node_id is not None:
            text = f"node {node_id} may have these messages and does not answer: pull again, or remove that node"
            self._requests.fail(asked.request, SystemBusy(text))
        return node_id is not None

    def _ask(self, asked: _Asked, nodes: Sequence[str]) -> bool:
        """Ask the first of these nodes that can be reached. Return False if none can."""
        for number, node_id in enumerate(nodes, 1):
            answered = partial(self._answered, asked, node_id, nodes[number:])
            if self._channel is not None and self._channel.submit(node_id, asked.data, answered, ANSWER_S):
                return True
        return False

    def _answered(self, asked: _Asked, node_id: str, other_nodes: Sequence[str], answer: bytes | PeerError) -> None:
        code = None if isinstance(answer, PeerError) else _code(answer)
        if not isinstance(answer, PeerError) and code in _READ:
            asked.request.origin.answer((answer,))
            return
        if code == ResponseCode.PULL_OFFSET_MOVED:
            asked.without.add(node_id)
        else:
            asked.failure = str(answer) if isinstance(answer, PeerError) else f"code {code}"
        if self._ask(asked, other_nodes):
            return
        if asked.failure is None:
            if not self._refuse(asked):
                self._requests.guard(asked.request, asked.not_there)
        else:
            text = f"the node that has these messages cannot read them now ({asked.failure}): pull again"
            self._requests.fail(asked.request, SystemBusy(text))

    def _on_request(self, sender: ReplicaId, data: bytes, reply: Callable[[bytes], None]) -> None:
        _ = sender
        lent = _decode(data)
        origin: Origin = _LeaderOrigin(reply)
        command = decode_command(Frame(lent.serialize_type, lent.header, lent.body))
        request = request_of(origin, command, lent.header, lent.body, self._env.now())
        request.confirmed = request.committed = True
        self._requests.guard(request, self._read, request)


def _code(answer: bytes) -> int | None:
    """Return the code of a response frame, or None if the bytes are not a frame."""
    decoder = FrameDecoder()
    decoder.receive_data(answer)
    frame = decoder.next_frame()
    return None if frame is None else decode_command(frame).code
