"""Requests on their way through the broker: their origin, their content, and their answers."""

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
from dledger_remoting.signatures import ACCESS_KEY_FIELD
from dledger_remoting.speech import FOR_ACCOUNT_FIELD, is_for_another, speech_in

Ts = TypeVarTuple("Ts")
Buffer: TypeAlias = bytes | memoryview

_FROM_GO: Final = b'"language":"GO"'
MAX_REMARK_CHARS: Final = 1_024
"""Maximum number of characters of an error's text in an answer. The text may repeat a client's input, and an answer has
to fit into a frame.
"""

_channels: Final = count(secrets.randbits(48))
"""Numbers of channels. They start at random, so that no channel gets the key of a channel of an earlier process of this
node. Other nodes would mistake it for that channel.
"""


def channel_key(node_id: str) -> str:
    """Return the key of a new channel of this node, unique in the group for ever."""
    return f"{node_id}/{next(_channels)}"


class Origin(Protocol):
    """Source of a request and target of its answer: a client's connection, or a node that forwards for a client.

    Each request is settled by exactly one call of `answer`, `settle` or, on the node that it was forwarded to,
    `refuse`.
    """

    @property
    def address(self) -> HostAddress:
        """The client's own address."""

    @property
    def born_host(self) -> bytes:
        """The 8 bytes of a record for the client's address: IPv4, zeros for a client without an IPv4 address."""

    @property
    def key(self) -> str:
        """The key of the client's channel (`channel_key`)."""

    @property
    def is_forwarded(self) -> bool:
        """True if another node forwards the client's requests."""

    @property
    def is_open(self) -> bool:
        """False once nobody reads answers any more."""

    held: int
    """Number of long polls that wait here. They are no longer `in_flight`."""
    in_flight: int
    """Number of requests that are not settled yet. Oneway requests count as well, because they take as much memory."""
    forwards: int
    """Number of requests that wait for a leader or for another node's answer. Later requests of this channel must not
    pass them.
    """
    forwards_sent: set[int]
    """Sequence numbers of the `forwards` that another node has and that may take effect."""
    forward_target: str | None
    """The node that has `forwards_sent`."""
    forward_refused: int
    """Sequence number of the first request that `forward_target` refused, 0 once it has no later request of this
    channel.
    """
    forward_epoch: int
    """Number of times that all requests behind a refused request have been returned."""
    client_ids: set[str]
    """Ids of the clients that heartbeat through this channel."""
    is_trusted: bool
    """True if a request through this channel was signed rightly, or if its address gives it an account."""

    def answer(self, parts: Sequence[Buffer]) -> None:
        """Send one response frame, given in pieces."""

    def answer_frame(self, frame: bytes) -> None:
        """Send one response frame."""

    def answer_frames(self, frames: Sequence[bytes]) -> None:
        """Send several response frames."""

    def settle(self) -> None:
        """Settle a request without an answer: a oneway request is done, or nobody waits for the answer any more."""

    def begin_wait(self) -> None:
        """Count a request that waits for messages from now on: it is `held`, and not `in_flight`."""

    def end_wait(self) -> None:
        """Count a request that no longer waits."""

    def refuse(self, term: int) -> None:
        """Refuse a request: this node does not lead and nothing was proposed. The forwarding node may hand the request
        on.
        """


class WaitsCounted:
    """Counts of an origin's requests: waiting requests, and all other requests."""

    __slots__ = ("held", "in_flight")
    held: int
    in_flight: int

    def begin_wait(self) -> None:
        """Count a request that waits from now on."""
        self.in_flight -= 1
        self.held += 1

    def end_wait(self) -> None:
        """Count a request that no longer waits."""
        self.held -= 1
        self.in_flight += 1


class Channel(Origin, Protocol):
    """An origin whose frames this node reads itself."""

    alias: int | None
    """The number of the write alias whose port it connected to. None if it connected to the node's own port."""

    def break_off(self, error: FrameError) -> None:
        """Stop reading, because the client sent bytes that cannot be decoded."""


Read: TypeAlias = tuple[Channel, bytes, list[FrameBounds]]
"""Bytes that arrived over one connection at once, with the bounds of the whole frames in them."""


class Principal(NamedTuple):
    """The account of a request: `name`, as it was at `version`.

    `by_address`: the client's address gives it the account, without a signature and without an administrator's rights.
    `is_node`: the request is a node's own, for that account.

    `speaker`: the account of a proxy that sends the request for the client, as it was at `speaker_version`. `ip` is the
    client's address, as the proxy says. All three are empty for a client's own request.
    """

    name: str
    version: int = 0
    by_address: bool = False
    is_node: bool = False
    speaker: str = ""
    speaker_version: int = 0
    ip: str = ""


class Request(msgspec.Struct, eq=False):
    """A received request, with fields that dispatching adds.

    - `header`, `body`: header and body of the frame.
    - `received`: a time of the event loop's clock.
    - `confirmed`: since the request arrived, a majority has confirmed that this node still leads, so any answer may be
      given.
    - `command`: the general form of the header, decoded when it is needed.
    - `sequence`: keeps the order of requests that are forwarded.
    - `principal`: the account that `kernel.access` found, None before the first check.
    - `unsure`: a leader got it and did not answer, so no error can say that nothing has happened.
    - `within_quotas`: quotas have admitted it.
    - `has_polled`: it has waited for messages.
    - `committed`: the offset that a pull carries has been handed over to be committed.
    - `verdict`: the state of the accounts by which its signature was checked, and the result. A signature covers the
      whole body, so it is checked again only when the accounts change.
    - `spoken_verdict`: the same for the signature of the client that a proxy sends the request for.
    - `on_answer`: called with code and remark of the answer.
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
    verdict: tuple[int, bool] | None = None
    spoken_verdict: tuple[int, bool] | None = None
    on_answer: Callable[[int, str | None], None] | None = None

    @property
    def is_oneway(self) -> bool:
        """True if it must not be answered."""
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def is_from_go(self) -> bool:
        """True if RocketMQ's Go client sent it. That client traces a send only if the answer has TRACE_ON, which other
        clients need not get.
        """
        if self.command is not None:
            return self.command.language == LanguageCode.GO
        return _FROM_GO in self.header

    @property
    def is_proven(self) -> bool:
        """True if its signature was found to be right, or its client's address gives it an account."""
        return self.principal is not None or (self.verdict is not None and self.verdict[1])

    @property
    def account(self) -> str:
        """The name of its account, empty if access control is off."""
        return "" if self.principal is None else self.principal.name

    @property
    def claimed_account(self) -> str:
        """The name of the account that it claims to be of, with the account that speaks for it."""
        if self.principal is not None:
            return self.sender
        name = self.ext.get(ACCESS_KEY_FIELD, "")
        return f"{self.ext.get(FOR_ACCOUNT_FIELD, '')} through {name}" if is_for_another(self.ext) else name

    @property
    def sender(self) -> str:
        """The name of its account for logs, empty if access control is off. It names the account that speaks, too."""
        speaker = "" if self.principal is None else self.principal.speaker
        return f"{self.account} through {speaker}" if speaker else self.account

    @property
    def client_address(self) -> HostAddress:
        """The address of its client, as far as it is proven: a proxy with the right may name another address."""
        if self.principal is None or not self.principal.speaker:
            return self.origin.address
        speech = speech_in(self.ext)
        return self.origin.address if speech is None else speech.address

    @property
    def is_rerouted(self) -> bool:
        """True if another node forwarded it, or it waited here for a leader. Newer requests may be ahead of it."""
        return self.origin.is_forwarded or self.sequence > 0

    def decoded(self) -> RemotingCommand:
        """Return the header with its ext fields as text.

        Raises `FrameError`, also for a request that was read by the short way, which skips the fields that it does not
        need.
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
        """Answer, unless the request is oneway. An answer that fits no frame becomes an error."""
        if self.on_answer is not None:
            self.on_answer(code, remark)
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


class Waits(Protocol):
    """The requests that wait for messages, and the memory that they take."""

    def has_room(self, request: Request) -> bool:
        """Return whether another request may wait."""

    def begin_wait(self, request: Request) -> None:
        """Count a request that waits from now on."""

    def end_wait(self, request: Request) -> None:
        """Count a request that no longer waits."""


class Requests(Protocol):
    """Services of the dispatcher for the handlers of requests."""

    held: Waits
    """The requests that wait on this node."""

    @property
    def max_body_bytes(self) -> int:
        """Maximum size in bytes of an answer's body: what a frame holds beside its header."""

    def respond(self, request: Request, body: bytes, ext: Mapping[str, str] | None = None) -> None:
        """Answer with a body that may be larger than a frame allows. Raises `MessageIllegal` if it is."""

    def fail(self, request: Request, error: Exception) -> None:
        """Answer with an error, unless another node or a confirmation may know better.

        Nothing has been proposed for the request, or the error says that the outcome is unknown.
        """

    def pass_on(self, request: Request) -> None:
        """Forward a request to the leader, now or as soon as a leader is known. Nothing of it has been proposed."""

    def guard(self, request: Request, handle: Callable[[*Ts], None], *what: *Ts) -> None:
        """Call the handler of a request. An error that it raises is the answer, except an `InvariantError`."""

    def spawn(self, request: Request, work: Coroutine[None, None, None]) -> None:
        """Continue a request in a task, because its answer may need the disk."""

    def run(self, request: Request) -> None:
        """Handle a request that has waited for something."""

    def resume(self, request: Request, error: Exception | None) -> None:
        """Handle a request that has waited for a change of the state, or fail it with the error of that change."""

    def confirm(self, request: Request) -> None:
        """Handle the request again once a majority has confirmed the leader, on this node or on the leader."""

    def when_confirmed(self, request: Request, go_on: Callable[[], None]) -> None:
        """Call `go_on` once a majority has confirmed that this node leads. If it does not lead, the request is
        forwarded.
        """


def read_request(origin: Origin, serialize_type: int, header: bytes, body: bytes, received: float) -> Request | None:
    """Return the request in a frame by the general path, None if the frame is a response. Raises `FrameError`."""
    command = decode_command(Frame(serialize_type, header, body))
    if command.flag & FLAG_RESPONSE:
        return None
    return request_of(origin, command, header, body, received)


def request_of(origin: Origin, command: RemotingCommand, header: bytes, body: bytes, received: float) -> Request:
    """Return the request whose header was decoded as `command`."""
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
    """Return a request that this node makes by itself, in the name of `origin` and its account, with `received` as its
    time.

    It is counted as in flight on `origin`.
    """
    origin.in_flight += 1
    decoder = FrameDecoder()
    decoder.receive_data(encode_command(command))
    frame = cast(Frame, decoder.next_frame())  # the encoding of one command is one whole frame
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
