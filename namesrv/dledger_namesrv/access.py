"""Access control of a name server: only holders of the key file may change anything.

These are the cluster's brokers and administrators. Brokers sign their registrations by an account that may do nothing
else. Reading is open, because RocketMQ's clients do not sign when they ask for a route.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from dledger_base.telling import Refusals
from dledger_remoting.accounts import NODE, ROOT, node_secret, root_secret
from dledger_remoting.codes import OPEN_CODES, RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import NoPermission
from dledger_remoting.signatures import ACCESS_KEY_FIELD, NOT_SIGNED, is_signed_with

from .config import ConfigError, NameServerConfig
from .kv import replace_file

OF_NODES: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.DLEDGER_TOPIC_CHANGES,
    }
)
"""Codes that the nodes' account may use. The administrators' account may use all."""

FACT_FILE: Final = "access_control"
"""File of the data directory of a name server that has access control."""

log = logging.getLogger("dledger.namesrv")


def keep_fact(config: NameServerConfig) -> None:
    """Note in the data directory that access control is on. Blocks.

    Raises `ConfigError` if access control was on before, and the configuration neither names a key file nor turns it
    off. A missing line or file must not open the server.
    """
    fact = config.data / FACT_FILE
    if config.access_mode == "on":
        replace_file(fact, b"on\n")
    elif config.access_control:
        fact.unlink(missing_ok=True)
    elif fact.exists():
        raise ConfigError(
            "access_key_file is missing, and this name server had access control when it ran last: name the brokers' "
            'key file, or say access_control = "off"'
        )


class NameServerAccess:
    """Access control by the keys of the key file. `mode` is the value of `access_control`, and `off` without keys."""

    def __init__(self, keys: Sequence[bytes] = (), mode: str = "on") -> None:
        self.replace(keys)
        self._mode = mode if keys else "off"
        self._refusals = Refusals(log, time.monotonic)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Use these keys of the key file from now on."""
        self._secrets = {
            ROOT: tuple(root_secret(key) for key in keys),
            NODE: tuple(node_secret(key) for key in keys),
        }

    @property
    def is_on(self) -> bool:
        """True if requests are judged, and refused."""
        return self._mode == "on"

    def require(self, request: RemotingCommand, address: str) -> bool:
        """Raise `NoPermission` unless the sender of a request, at an address, may do what it asks for.

        With `access_control = "log"` the request is logged and accepted instead. Returns True if it was signed rightly.
        """
        if self._mode == "off" or request.code in OPEN_CODES:
            return False
        name = request.ext.get(ACCESS_KEY_FIELD, "")
        if not name:
            why = NOT_SIGNED
        elif name not in self._secrets or (name == NODE and request.code not in OF_NODES):
            why = f"User:{name[:64]} is not found."
        else:
            secrets = self._secrets[name]
            if any(is_signed_with(secret, request.ext, request.body, request.version) for secret in secrets):
                return True
            why = "check signature failed."
        event = "access_refused" if self.is_on else "access_would_refuse"
        self._refusals.tell(event, address.rpartition(":")[0], name, f"{address} code={request.code}", why)
        if self.is_on:
            raise NoPermission(f"{why} ({request_code_name(request.code)} is for who has the key file)")
        return False
