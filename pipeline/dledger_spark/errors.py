"""Errors of reads and writes; every text names what to change."""

from __future__ import annotations

from collections.abc import Iterable


class SourceError(Exception):
    """Base of all errors of this package."""


class OptionError(SourceError, ValueError):
    """An option is unknown, has a value that is not allowed, or contradicts another one."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"option {name!r} is {value!r}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.name, self.value, self.allowed)


class WireError(SourceError):
    """A connection was lost, was silent for too long, or carried what is not RocketMQ's protocol."""


class WrongServerError(WireError):
    """Something else is at the address of a broker or name server: it has answered, or has never said anything."""


class ClosingServerError(WrongServerError):
    """Whoever is there closed the connection before a word came: most TLS servers do, and servers that stop."""


class NoNameServerError(SourceError):
    """No name server could be reached."""


class RefusedError(SourceError):
    """A server answered with a code other than success."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.ext = ext or {}

    def __reduce__(self) -> tuple[type[RefusedError], tuple[int, str, dict[str, str]]]:
        return type(self), (self.code, self.remark, self.ext)


class CorruptDataError(SourceError):
    """Bytes of the log do not verify: a checksum, the chain, or the layout of a record."""


class DataLossError(SourceError):
    """Messages that were to be read are gone, and `failOnDataLoss` is true."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: retention removed them, or the topic was deleted. "
            "Set failOnDataLoss=false to go on with what is left"
        )
        self.what = what

    def __reduce__(self) -> tuple[type[DataLossError], tuple[str]]:
        return type(self), (self.what,)


class NoReplicaError(SourceError):
    """No replica of the wanted kind served a range within `readTimeout`."""

    def __init__(self, group: str, read_from: str, timeout_s: float, refusals: Iterable[str]) -> None:
        reasons = tuple(refusals)
        hint = "" if read_from == "any" else "; readFrom=any also reads from the leader and from learners"
        super().__init__(
            f"no replica of {group} that readFrom={read_from} allows served the read within {timeout_s:g} s "
            f"({'; '.join(reasons) or 'none is registered'}){hint}"
        )
        self.arguments = (group, read_from, timeout_s, reasons)

    def __reduce__(self) -> tuple[type[NoReplicaError], tuple[str, str, float, tuple[str, ...]]]:
        return type(self), self.arguments
