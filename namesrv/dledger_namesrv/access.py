"""Access control of a name server: what changes anything is taken of who has the key file alone.

These are brokers of the cluster, which sign what they register, and administrators. What is only read is open: clients
of RocketMQ do not sign when they ask for a route.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import NoPermission
from dledger_remoting.root_account import ROOT, parse_keys, root_secret
from dledger_remoting.signatures import ACCESS_KEY_FIELD, is_signed_with

from .config import ConfigError

OPEN_CODES: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.DLEDGER_ROUTE_WATCH,
    }
)
"""What anybody may ask. Every other code, also one that is served tomorrow, needs the key file."""

log = logging.getLogger("dledger.namesrv")


class NameServerAccess:
    """`secrets` are those of the root account, none where access control is off."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secrets)

    @classmethod
    def of_file(cls, path: Path | None) -> NameServerAccess:
        """Access control by a key file; none is no access control. Raises `ConfigError`."""
        if path is None:
            return cls()
        try:
            return cls([root_secret(key) for key in parse_keys(path.read_text(encoding="ascii"))])
        except OSError as error:
            raise ConfigError(f"access_key_file {path} cannot be read: {error.strerror}") from error
        except ValueError as error:  # also of bytes that are no ASCII, whose text would repeat them
            reason = "it is no ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
            raise ConfigError(f"access_key_file {path}: {reason}") from None

    @property
    def is_on(self) -> bool:
        """Whether requests are judged."""
        return bool(self._secrets)

    def require(self, request: RemotingCommand, address: str) -> None:
        """Raise `NoPermission` unless who sent a request from an address may have what it asks for; one line for each
        that is refused.
        """
        if not self._secrets or request.code in OPEN_CODES:
            return
        name = request.ext.get(ACCESS_KEY_FIELD, "")
        if not name:
            why = "username cannot be null."
        elif name != ROOT:
            why = f"User:{name[:64]} is not found."
        else:
            matches = [is_signed_with(secret, request.ext, request.body, request.version) for secret in self._secrets]
            if any(matches):
                return
            why = "check signature failed."
        log.warning("event=access_refused client=%s code=%d refusal=%r", address, request.code, why)
        raise NoPermission(f"{why} ({request_code_name(request.code)} is for who has the key file)")
