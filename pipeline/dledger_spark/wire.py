"""A small blocking client of the remoting protocol: the standard library only, because it runs on bare executors.

The frame is that of `dledger_remoting.frame` with a JSON header. Requests may be sent ahead; answers are matched by
their number. Without TLS, one call copies a whole body out of the kernel if it arrives within the time limit.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Self

from .errors import ClosingServerError, RefusedError, WireError, WrongServerError
from .signing import account, signed, tls_context

MAX_FRAME_BYTES: Final = 16 << 20
"""Maximum size of a frame in bytes. No broker sends a larger one."""

FIRST_ANSWER_S: Final = 1.5
"""Time limit in seconds for the first answer of an address that has never answered, on a connection without TLS."""

_AFTER_HALF_CLOSE_S: Final = 0.25
"""Further time limit in seconds after the half-close: a server of a protocol of lines may answer only then."""

_PROBE_BYTES: Final = 64
_VERSION: Final = 479
"""The protocol version that requests state: RocketMQ 5.3.3, as `dledger_remoting.codes` has it."""
_PREFIX: Final = struct.Struct(">II")
_RESPONSE: Final = 1


class Response(NamedTuple):
    """An answer: its code, its extra fields, its text for humans, its body."""

    code: int
    ext: dict[str, str]
    remark: str
    body: bytes

    def check(self) -> Response:
        """Return the answer itself. Raises `RefusedError` if its code is not success."""
        if self.code != 0:
            raise RefusedError(self.code, self.remark, self.ext)
        return self


class Connection:
    """One TCP connection to a broker or a name server; not for use by several threads.

    `timeout_s` limits connecting, and the silence of the other side while an answer is awaited. An answer that takes
    longer has to come at `min_bytes_per_second`.

    Every failure raises `WireError`, and the connection is then of no further use. `WrongServerError` means that
    another kind of server is there. Unless `is_known`, silence means the same, without TLS after `FIRST_ANSWER_S`.
    Raises `SourceError` if the files of the account or of TLS cannot be read.

    Requests to a broker are signed if this machine names an account (`signing`). Requests to a name server are never
    signed: it serves everybody, and could use the signature itself. The connection is TLS if this machine names
    authorities.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float,
        min_bytes_per_second: int = 0,
        *,
        is_known: bool = True,
        to_broker: bool = True,
    ) -> None:
        self.address = address
        self._account = account() if to_broker else None
        self._timeout_s = timeout_s
        self._is_known = is_known
        self._first_bytes = b""
        self._min_bytes_per_second = min_bytes_per_second
        self._opaque = 0
        self._answers: dict[int, Response] = {}
        context = tls_context()
        self._is_secured = context is not None
        host, _, port = address.rpartition(":")
        first_answer_s = timeout_s if is_known else min(timeout_s, FIRST_ANSWER_S)
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
            if context is not None:
                self._socket.settimeout(first_answer_s)
                self._socket = context.wrap_socket(self._socket, server_hostname=host.strip("[]"))
                return
            # A receive with MSG_WAITALL that the kernel bounds: no poll per fragment, no second copy of a body.
            self._socket.settimeout(None)
            self._limit_receive(first_answer_s)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise WireError(f"{address}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; answers in flight are lost."""
        self._socket.close()

    def send(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request, and return the number by which `receive` finds its answer."""
        self._opaque += 1
        if self._account is not None:
            ext = signed(ext, body, self._account)
        command = {
            "code": code,
            "extFields": ext,
            "flag": 0,
            "language": "PYTHON",
            "opaque": self._opaque,
            "version": _VERSION,
        }
        header = json.dumps(command, separators=(",", ":")).encode()
        try:
            self._socket.sendall(b"".join((_PREFIX.pack(4 + len(header) + len(body), len(header)), header, body)))
        except OSError as error:
            raise WireError(f"{self.address}: {error}") from error
        return self._opaque

    def receive(self, opaque: int) -> Response:
        """Return the answer to a sent request. Answers to other requests are kept for their own calls."""
        while opaque not in self._answers:
            number, response = self._read_frame()
            if number is not None:
                self._answers[number] = response
        return self._answers.pop(opaque)

    def request(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> Response:
        """Send a request and wait for its answer, whatever its code."""
        return self.receive(self.send(code, ext, body))

    def requests(self, code: int, all_ext: Sequence[Mapping[str, str]], body: bytes = b"") -> list[Response]:
        """Return the answers to many requests of one kind and body, in their order; at most 64 are in flight."""
        answers: list[Response] = []
        for start in range(0, len(all_ext), 64):
            sent = [self.send(code, ext, body) for ext in all_ext[start : start + 64]]
            answers += [self.receive(opaque) for opaque in sent]
        return answers

    def _read_frame(self) -> tuple[int | None, Response]:
        """Return the next frame's content, and the number of the request that it answers (None if it is no answer)."""
        total, word = _PREFIX.unpack(self._receive_exactly(_PREFIX.size))
        header_bytes = word & 0xFFFFFF
        if total > MAX_FRAME_BYTES or word >> 24 or header_bytes > total - 4:
            raise self._protocol_error(f"a frame of {total} bytes with the header word {word:08x}")
        header = self._receive_exactly(header_bytes)
        body = self._receive_exactly(total - 4 - header_bytes)
        if not self._is_known:
            self._is_known = True
            self._limit_receive(self._timeout_s)
        try:
            fields = json.loads(header)
            number = int(fields["opaque"]) if int(fields["flag"]) & _RESPONSE else None
            ext = {str(key): str(value) for key, value in (fields.get("extFields") or {}).items()}
            return number, Response(int(fields["code"]), ext, str(fields.get("remark") or ""), body)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(f"{self.address}: a header that cannot be read: {error!r}") from error

    def _receive_exactly(self, size: int) -> bytes:
        if size == 0:
            return b""
        began = time.monotonic()
        data = self._receive(size)
        if len(data) == size:
            return data
        parts, missing = [data], size - len(data)
        while missing:  # the kernel has given up waiting for all of it, or that was one record of TLS
            seconds = time.monotonic() - began
            is_early = self._is_secured and seconds < self._timeout_s
            if not is_early and size - missing < self._min_bytes_per_second * seconds:
                raise WireError(
                    f"{self.address}: {size - missing} bytes in {seconds:.1f} s,"
                    f" less than minBytesPerSecond={self._min_bytes_per_second}"
                )
            parts.append(self._receive(missing))
            missing -= len(parts[-1])
        return b"".join(parts)

    def _receive(self, size: int) -> bytes:
        try:
            data = self._socket.recv(size, 0 if self._is_secured else socket.MSG_WAITALL)
        except (BlockingIOError, TimeoutError) as error:
            if not (self._is_known or self._first_bytes):
                raise self._silence_error() from error
            raise WireError(f"{self.address}: silent for too long") from error
        except ConnectionResetError as error:
            raise (WireError(f"{self.address}: {error}") if self._first_bytes else self._early_close_error()) from error
        except OSError as error:
            raise WireError(f"{self.address}: {error}") from error
        if not data:
            raise self._protocol_error("closed the connection") if self._first_bytes else self._early_close_error()
        if len(self._first_bytes) < _PROBE_BYTES:
            self._first_bytes += data[:_PROBE_BYTES]
        return data

    def _limit_receive(self, seconds: float) -> None:
        if self._is_secured:  # OpenSSL would ask the kernel again
            self._socket.settimeout(seconds)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def _silence_error(self) -> WireError:
        """Return the error for a silent server.

        Half-close first: a server of another protocol may answer then. TLS has no half-closed connections: Python would
        go on reading without TLS, and the server's encrypted bytes would look like those of another protocol.
        """
        waited_s = FIRST_ANSWER_S
        if not self._is_secured:
            waited_s += _AFTER_HALF_CLOSE_S
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                self._limit_receive(_AFTER_HALF_CLOSE_S)
                self._first_bytes = self._socket.recv(_PROBE_BYTES)
        silence = f"takes connections and says nothing: no answer within {waited_s:g} s"
        return self._protocol_error(silence) if self._first_bytes else WrongServerError(f"{self.address}: {silence}")

    def _early_close_error(self) -> WireError:
        """Return the error for a connection that ended before its first byte."""
        if self._is_known:
            return WireError(f"{self.address}: closed the connection")
        try:
            from dledger_remoting.speakers import CLOSES_UNHEARD
        except ImportError:
            return ClosingServerError(f"{self.address}: closed the connection")
        return ClosingServerError(f"{self.address}: {CLOSES_UNHEARD}")

    def _protocol_error(self, breach: str) -> WireError:
        """Return the error for bytes that are no answer, with the sender's protocol if the first bytes show it."""
        with suppress(OSError, ValueError):  # ValueError: TLS takes no flags, and no other server has answered there
            self._first_bytes += self._socket.recv(_PROBE_BYTES, socket.MSG_DONTWAIT)
        try:
            from dledger_remoting.speakers import Speaker, speaker_of  # executors may lack its imports
        except ImportError:
            return WireError(f"{self.address}: {breach}")
        speaker = speaker_of(self._first_bytes)
        if speaker is None or speaker is Speaker.REMOTING:
            return WireError(f"{self.address}: {breach}")
        return WrongServerError(f"{self.address}: {speaker.value} answered there, no name server and no broker")


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
