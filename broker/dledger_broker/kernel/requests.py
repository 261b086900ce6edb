"""Requests on their way through the broker: where one came from, what it asks, how it is settled."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVarTuple, cast

import msgspec

from dledger_remoting.codes import LanguageCode
from dledger_remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    decode_command,
    encode_command,
    encode_command_parts,
    make_response,
)
from dledger_remoting.errors import FrameError, OutcomeUnknown, RemotingError
from dledger_remoting.frame import Frame, FrameBounds, FrameDecoder
from dledger_remoting.hosts import HostAddress

Ts = TypeVarTuple("Ts")
Buffer: TypeAlias = bytes | memoryview

_FROM_GO: Final = b'"language":"GO"'
MAX_REMARK_CHARS: Final = 1_024
"""As much of an error's text is told: it may repeat what a client sent, and an answer has to fit into a frame."""

_channels: Final = count(secrets.randbits(48))
"""Starting anywhere keeps a channel from having the key of one that an earlier process of this node had, and with it
what other nodes remember of that.
"""


def channel_key(node_id: str) -> str:
    """The key of another channel of this node, which no other one in the group has or had."""
    return f"{node_id}/{next(_channels)}"


class Origin(Protocol):
    """Where a request came from and where its answer goes: a client's connection, or a node that forwards for one.

    Each request is settled by exactly one call of `answer`, `settle` or, on the node that it was forwarded to, of
    `refuse`.
    """

    @property
    def address(self) -> HostAddress:
        """The client's own address."""

    @property
    def born_host(self) -> bytes:
        """The 8 bytes that a record holds of the client's address: IPv4, zeros for a client that has none."""

    @property
    def key(self) -> str:
        """The client's channel (`channel_key`)."""

    @property
    def is_forwarded(self) -> bool:
        """True if another node stands between."""

    @property
    def is_open(self) -> bool:
        """False once nobody reads answers any more."""

    held: int
    """Long polls that wait here; they are no longer `in_flight`."""
    in_flight: int
    """Requests that are not settled yet, oneway ones as well: they take as much memory."""
    forwards: int
    """Requests that wait for a leader or for another node's answer; later ones of this channel must not pass them."""
    forwards_sent: set[int]
    """Those of `forwards` that another node has and that may take effect, by their sequence numbers."""
    forward_target: str | None
    """That node."""
    forward_refused: int
    """The first of those that it refused, while it has later ones; 0 if there is none."""
    forward_epoch: int
    """How often everything that was sent behind a refused request has come back."""
    client_ids: set[str]
    """Who heartbeats through this channel."""

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Send one response frame, given in pieces."""

    def answer_frame(self, frame: bytes) -> None:
        """Send one response frame."""

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Send several response frames."""

    def settle(self) -> None:
        """A oneway request is done, or one that nobody is there any more to be answered."""

    def begin_wait(self) -> None:
        """A request waits for messages from now on: it is `held`, and not `in_flight`."""

    def end_wait(self) -> None:
        """It waits no longer."""

    def refuse(self, term: int) -> None:
        """This node does not lead and nothing was proposed: the node in between may hand the request on."""


class WaitsCounted:
    """Counts of an origin's requests: those that wait, and the others."""

    __slots__ = ("held", "in_flight")
    held: int
    in_flight: int

    def begin_wait(self) -> None:
        """See `Origin`."""
        self.in_flight -= 1
        self.held += 1

    def end_wait(self) -> None:
        """See `Origin`."""
        self.held -= 1
        self.in_flight += 1


class Channel(Origin, Protocol):
    """An origin whose frames this node reads itself."""

    alias: int | None
    """The number of the write alias that it came to; None: it came to the node's own port."""

    def break_off(self, error: FrameError) -> None:
        """It sent what cannot be read: hear nothing more from it."""


Read: TypeAlias = tuple[Channel, bytes, list[FrameBounds]]
"""What came over one connection at once, and where the whole frames in it lie."""


class Principal(NamedTuple):
    """Whose request it is: the account `name`, as it was at `version`.

    `by_address`: the client's address gives it the account, without a signature and without an administrator's rights.
    `is_node`: the request is a node's own, for that account.
    """

    name: str
    version: int = 0
    by_address: bool = False
    is_node: bool = False


class Request(msgspec.Struct, eq=False):
    """A request as it came, with what dispatching adds.

    `header` and `body` are the frame's; `received` is a time of the event loop's clock. `confirmed` says that this node
    has asked a majority whether it still leads since the request came, so that any answer may be given. `command` is
    the general form of the header, decoded when it is needed; `sequence` keeps the order of requests that are
    passed on. `principal` is told by `kernel.access`, None as long as nobody has asked. `unsure`: a leader was handed
    it and did not answer, so that no error can say that nothing has happened. `within_quotas`: quotas let it go on.
    `has_polled`: it has waited for messages. `committed`: the offset that a pull brings was taken.
    """

    origin: Origin
    code: int
    opaque: int
    flag: int
    serialize_type: int
    header: bytes
    body: bytes
    received: float
    confirmed: bool = False
    sequence: int = 0
    command: RemotingCommand | None = None
    principal: Principal | None = None
    unsure: bool = False
    within_quotas: bool = False
    has_polled: bool = False
    committed: bool = False

    @property
    def is_oneway(self) -> bool:
        """True if it must not be answered."""
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def is_from_go(self) -> bool:
        """True if RocketMQ's Go client sent it: that traces a send only if the answer has TRACE_ON, which other clients
        need not be told.
        """
        if self.command is not None:
            return self.command.language == LanguageCode.GO
        return _FROM_GO in self.header

    @property
    def account(self) -> str:
        """The name of the account that it is of; empty where access control is off."""
        return "" if self.principal is None else self.principal.name

    @property
    def took_a_detour(self) -> bool:
        """True if another node passed it on, or it waited here for a leader: newer ones may be ahead of it."""
        return self.origin.is_forwarded or self.sequence > 0

    def decoded(self) -> RemotingCommand:
        """The header with its ext fields as text.

        Raises `FrameError`: also of a request that was read by the short way, which passes over what it does not need.
        """
        if self.command is None:
            self.command = decode_command(Frame(self.serialize_type, self.header, self.body))
        return self.command

    @property
    def ext(self) -> Mapping[str, str]:
        """The ext fields. Raises `FrameError` as `decoded` does."""
        return self.decoded().ext

    def respond(
        self, code: int = 0, remark: str | None = None, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Answer, unless the request is oneway; an answer that fits no frame is an error instead."""
        if self.flag & FLAG_ONEWAY:
            self.origin.settle()
        else:
            request = RemotingCommand(self.code, self.opaque, serialize_type=self.serialize_type)
            try:
                parts = encode_command_parts(make_response(request, code, remark, ext, body))
            except FrameError as error:
                parts = encode_command_parts(make_response(request, error.code, f"the answer: {error.remark}"))
            self.origin.answer(parts)

    def fail(self, error: RemotingError) -> None:
        """Answer with an error: its code, its text on one line, its ext fields."""
        if self.unsure and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"a leader that did not answer may have handled it, and then: {error.remark}")
        remark = " ".join(error.remark[:MAX_REMARK_CHARS].splitlines()) or type(error).__name__
        self.respond(error.code, remark, error.ext)


class Requests(Protocol):
    """What a handler asks of the machinery that handed it a request."""

    @property
    def max_body_bytes(self) -> int:
        """The largest body of an answer: what a frame holds beside its header."""

    def respond(self, request: Request, body: bytes, ext: Mapping[str, str] | None = None) -> None:
        """Answer with a body that may be larger than a frame allows. Raises `MessageIllegal` if it is."""

    def fail(self, request: Request, error: Exception) -> None:
        """Answer with an error, unless another node or a confirmation may know better.

        Nothing has been proposed for the request, or the error says that the outcome is unknown.
        """

    def pass_on(self, request: Request) -> None:
        """Hand a request to the leader, now or as soon as there is one. Nothing of it has been proposed."""

    def guard(self, request: Request, handle: Callable[[*Ts], None], *what: *Ts) -> None:
        """Call what handles a request; an error that it raises is the answer, but for `InvariantError`."""

    def spawn(self, request: Request, work: Coroutine[None, None, None]) -> None:
        """Go on with a request in a task, because its answer may need the disk."""

    def run(self, request: Request) -> None:
        """Handle a request that has waited for something."""

    def resume(self, request: Request, error: Exception | None) -> None:
        """Handle a request that has waited for a change of the state, unless that failed."""

    def confirm(self, request: Request) -> None:
        """Handle the request again once a majority has confirmed the leader: here, or there."""

    def when_confirmed(self, request: Request, go_on: Callable[[], None]) -> None:
        """Call `go_on` once a majority has confirmed that this node leads; if it does not, the request is passed on."""


def read_request(origin: Origin, serialize_type: int, header: bytes, body: bytes, received: float) -> Request | None:
    """The request in a frame by the general path, None if the frame is a response. Raises `FrameError`."""
    command = decode_command(Frame(serialize_type, header, body))
    if command.flag & FLAG_RESPONSE:
        return None
    return request_of(origin, command, header, body, received)


def request_of(origin: Origin, command: RemotingCommand, header: bytes, body: bytes, received: float) -> Request:
    """The request whose header was decoded as `command`."""
    return Request(
        origin,
        command.code,
        command.opaque,
        command.flag,
        command.serialize_type,
        header,
        body,
        received,
        command=command,
    )


def own_request(origin: Origin, command: RemotingCommand, received: float, account: str = "") -> Request:
    """A request that this node makes by itself, in the name of `origin` and its account, as if it had come at
    `received`: `origin` has it in flight.
    """
    origin.in_flight += 1
    decoder = FrameDecoder()
    decoder.receive_data(encode_command(command))
    frame = cast(Frame, decoder.next_frame())  # what one command was encoded as is whole
    return Request(
        origin,
        command.code,
        command.opaque,
        command.flag,
        frame.serialize_type,
        frame.header,
        frame.body,
        received,
        principal=Principal(account, is_node=True),
    )
