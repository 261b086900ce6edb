"""Access to a cluster: where its name servers are, for whom requests are signed, and how connections are secured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger_client import (
    AccountAdmin,
    Admin,
    ClientError,
    Credentials,
    Filter,
    Producer,
    PullConsumer,
    RefusedError,
    SendError,
    Tls,
)
from dledger_remoting.codes import ResponseCode
from dledger_remoting.signatures import NOT_SIGNED

from .errors import OperationError

_NO_RIGHT: Final = "has no permission to access"
_WRONG_SIGNATURE: Final = "check signature failed."
_NO_ACCOUNT: Final = ("is not found.", "is disabled.", "is not exist.")
"""Texts in refusals that are about a missing or disabled account."""


@dataclass(frozen=True, slots=True)
class Access:
    """A cluster and the account that asks it. The clients that it makes are not started yet.

    `credentials` are None where requests are not signed, `tls` is None for plain connections.
    """

    name_servers: str
    credentials: Credentials | None = None
    tls: Tls | None = None

    def admin(self) -> Admin:
        """Return an administrator."""
        return Admin(self.name_servers, credentials=self.credentials, tls=self.tls)

    def accounts(self) -> AccountAdmin:
        """Return an administrator of accounts. Raises `OperationError` where requests are not signed."""
        if self.credentials is None:
            raise OperationError("access control is off: there are accounts and rights only where it is on")
        return AccountAdmin(self.name_servers, self.credentials, tls=self.tls)

    def producer(self, group: str) -> Producer:
        """Return a producer of a group."""
        return Producer(self.name_servers, group=group, credentials=self.credentials, tls=self.tls)

    def reader(self, chosen: Filter = "*") -> PullConsumer:
        """Return a consumer that reads any queue. A message whose body cannot be read has a `fault`.

        It gets the messages that a filter chooses.
        """
        return PullConsumer(
            self.name_servers, filter=chosen, keep_unreadable=True, credentials=self.credentials, tls=self.tls
        )


def is_signature_refused(error: ClientError) -> bool:
    """Return whether brokers refused a request because its secret is not that of its account."""
    return _is_refusal(error) and _WRONG_SIGNATURE in str(error)


def is_account_missing(error: ClientError) -> bool:
    """Return whether brokers refused a request because its account does not exist or is disabled."""
    return _is_refusal(error) and any(text in str(error) for text in _NO_ACCOUNT)


def is_person_unknown(error: ClientError) -> bool:
    """Return whether brokers refused a request before they looked at rights: nobody has shown who asks."""
    return is_signature_refused(error) or is_account_missing(error) or (_is_refusal(error) and NOT_SIGNED in str(error))


def is_right_refused(error: ClientError) -> bool:
    """Return whether brokers refused a request because its account has no right to it."""
    return _is_refusal(error) and _NO_RIGHT in str(error)


def _is_refusal(error: ClientError) -> bool:
    code = error.code if isinstance(error, RefusedError | SendError) else None
    return code == ResponseCode.NO_PERMISSION
