"""Access control of a name server: what changes anything is taken of who has the key file alone.

These are brokers of the cluster, which sign what they register by an account that may do nothing else, and
administrators. What is only read is open: clients of RocketMQ do not sign when they ask for a route.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from dledger_remoting.codes import RequestCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import NoPermission
from dledger_remoting.name_server_codes import OPEN_CODES
from dledger_remoting.root_account import NODE, ROOT, node_secret, root_secret
from dledger_remoting.signatures import ACCESS_KEY_FIELD, is_signed_with

OF_NODES: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.DLEDGER_TOPIC_CHANGES,
    }
)
"""What the nodes' account may ask; the administrators' may ask everything."""

log = logging.getLogger("dledger.namesrv")


class NameServerAccess:
    """`keys` are those of the key file, none where access control is off."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._secrets = {
            ROOT: tuple(root_secret(key) for key in keys),
            NODE: tuple(node_secret(key) for key in keys),
        }
        self._is_on = bool(keys)

    @property
    def is_on(self) -> bool:
        """Whether requests are judged."""
        return self._is_on

    def require(self, request: RemotingCommand, address: str) -> None:
        """Raise `NoPermission` unless who sent a request from an address may have what it asks for; one line for each
        that is refused.
        """
        if not self._is_on or request.code in OPEN_CODES:
            return
        name = request.ext.get(ACCESS_KEY_FIELD, "")
        if not name:
            why = "username cannot be null."
        elif name not in self._secrets or (name == NODE and request.code not in OF_NODES):
            why = f"User:{name[:64]} is not found."
        else:
            secrets = self._secrets[name]
            matches = [is_signed_with(secret, request.ext, request.body, request.version) for secret in secrets]
            if any(matches):
                return
            why = "check signature failed."
        log.warning("event=access_refused client=%s code=%d refusal=%r", address, request.code, why)
        raise NoPermission(f"{why} ({request_code_name(request.code)} is for who has the key file)")
