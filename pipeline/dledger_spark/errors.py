"""Errors of reads and writes; every text names what to change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NO_PERMISSION: Final = 16


class SourceError(Exception):
    """Base of all errors of this package."""


class OptionError(SourceError, ValueError):
    """An option is unknown, has a value that is not allowed, or contradicts another option."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"option {name!r} is {value!r}: {allowed}")
        self.name = name
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.name, self.value, self.allowed)


class UnknownOptionError(OptionError):
    """An option does not exist. The text leaves the value out: it may be a secret under a misspelt name."""

    def __init__(self, name: str, allowed: str) -> None:
        SourceError.__init__(self, f"option {name!r} is {allowed}")
        self.name = name
        self.value = None
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[UnknownOptionError], tuple[str, str]]:  # type: ignore[override]
        return type(self), (self.name, self.allowed)


class WireError(SourceError):
    """A connection was lost, was silent for too long, or carried what is not RocketMQ's protocol."""


class WrongServerError(WireError):
    """Something else is at the address of a broker or name server: it has answered, or has never said anything."""


class ClosingServerError(WrongServerError):
    """The server closed the connection before it sent a byte, as most TLS servers do, and servers that stop."""


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


class DeniedError(RefusedError):
    """The leader says that the account lacks a right."""

    def __init__(self, remark: str) -> None:
        super().__init__(NO_PERMISSION, remark)
        text = f"the account that DLEDGER_CREDENTIALS names may not do this: {remark}. "
        self.args = (f"{text}The guide to Spark, under Access control, has the rights that each way of reading needs",)

    def __reduce__(self) -> tuple[type[DeniedError], tuple[str]]:  # type: ignore[override]
        return type(self), (self.remark,)


class CorruptDataError(SourceError):
    """Bytes of the log do not verify: a checksum, the chain, or the layout of a record."""


class BadRecordError(SourceError):
    """The body of a message is as it was sent and cannot be decoded, and `badRecords` is `FAILFAST`."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(
            f"the body of {message} cannot be decoded: {why}. Set badRecords=PERMISSIVE for a null value with the raw "
            "body in _corrupt_record, or badRecords=DROPMALFORMED to leave such messages out"
        )
        self.arguments = (message, why)

    def __reduce__(self) -> tuple[type[BadRecordError], tuple[str, str]]:
        return type(self), self.arguments


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


class NotRememberedError(SourceError):
    """A row was sent again whose first send the brokers may have stored without remembering it."""

    def __init__(self, topic: str, broker_group: str, why: str) -> None:
        super().__init__(
            f"a row to topic {topic!r} may be stored twice on {broker_group}: {why}, and the broker group did not "
            "remember the send. It remembers no more than max_idempotent_keys within idempotent_window_ms: raise the "
            "former, or write more slowly (maxRowsPerSecond)"
        )
        self.arguments = (topic, broker_group, why)

    def __reduce__(self) -> tuple[type[NotRememberedError], tuple[str, str, str]]:
        return type(self), self.arguments


class UnsubscribedError(SourceError):
    """A stream's checkpoint has a topic that its options do not name any more, and `failOnDataLoss` is true."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: subscribe to it again, or set failOnDataLoss=false to go on without it")
        self.what = what

    def __reduce__(self) -> tuple[type[UnsubscribedError], tuple[str]]:
        return type(self), (self.what,)


class OtherGroupError(SourceError):
    """A broker group is not the one that a stream's checkpoint is about, though it has the same name."""

    def __init__(self, broker_group: str, found: str, expected: str) -> None:
        super().__init__(
            f"broker group {broker_group} has the identity {found}, and the checkpoint is about {expected}: the group "
            "was founded anew under the same name, or its nodes were left behind by a rescue. Its offsets mean other "
            "messages: give namesrv the cluster that the query began with, or begin with a new checkpoint"
        )
        self.arguments = (broker_group, found, expected)

    def __reduce__(self) -> tuple[type[OtherGroupError], tuple[str, str, str]]:
        return type(self), self.arguments


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


class JobError(SourceError):
    """A job cannot do its work, or found its result inconsistent. Nothing was published."""
