"""The root accounts of access control, derived from the keys of a key file: one for administrators, one for the nodes
themselves.

The secret of an account is the Base64 of HMAC-SHA256 over the account's label with a key. A client signs with the first
key's secret; a server accepts the secret of each key.

Nodes have an account of their own, which allows only registrations. A signature does not say for what request it
was made. With a shared account, a foreign name server could forward a registration to brokers as the creation of an
administrator.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Sequence
from typing import Final

from .signatures import Credentials

ROOT: Final = "dledger.root"
"""The administrators' account."""
NODE: Final = "dledger.node"
"""The nodes' account, which only name servers accept."""
_LABEL: Final = b"dledger root account 1"
_NODE_LABEL: Final = b"dledger node account 1"


def root_secret(key: bytes) -> str:
    """Return the administrators' secret for a key."""
    return b64encode(hmac.digest(key, _LABEL, "sha256")).decode()


def node_secret(key: bytes) -> str:
    """Return the nodes' secret for a key."""
    return b64encode(hmac.digest(key, _NODE_LABEL, "sha256")).decode()


def root_credentials(keys: Sequence[bytes]) -> Credentials:
    """Return the administrators' credentials, derived from the first of the keys."""
    return Credentials(ROOT, root_secret(keys[0]))
