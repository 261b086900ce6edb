"""Named clusters: the addresses, TLS files and account of each, kept in one private file of a user.

The file is TOML. It names files with secrets, and never has a secret itself:

    current = "prod"

    [contexts.prod]
    namesrv = "mq-1:9876;mq-2:9876"
    tls_ca = "/etc/mq/ca.pem"
    tls_cert = "/etc/mq/me.pem"
    tls_key = "/etc/mq/me.key"
    credentials = "/etc/mq/my-account"

It is `contexts.toml` in `$XDG_CONFIG_HOME/dledger`, or in `~/.config/dledger`; the variable `DLEDGER_CONTEXTS` names
another one. It is replaced as a whole, with mode 0600.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from dledger_base.similar_names import did_you_mean
from dledger_client import ClientError
from dledger_client.cluster.nameservers import parse_addresses

from .cluster.files import write_durably
from .cluster.toml_text import dump
from .errors import AdminError

FILE_VARIABLE: Final = "DLEDGER_CONTEXTS"
CONTEXT_VARIABLE: Final = "DLEDGER_CONTEXT"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLES: Final = {
    "tls_ca": "DLEDGER_TLS_CA",
    "tls_cert": "DLEDGER_TLS_CERT",
    "tls_key": "DLEDGER_TLS_KEY",
    "credentials": "DLEDGER_CREDENTIALS",
}
"""Variable of the environment for which each field of a context stands in."""


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A cluster: addresses of its name servers, and paths of files. "" stands for no file."""

    namesrv: str
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    credentials: str = ""

    def variables(self) -> dict[str, str]:
        """Return the variables of the environment for TLS and the account, empty where the context has none."""
        return {variable: str(getattr(self, field)) for field, variable in _VARIABLES.items()}


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The contexts of a user. `current` is the one that counts if none is named, "" for none."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        """Return a context. Raises `AdminError`, which suggests names, if there is none of this name."""
        if name not in self.contexts:
            hint = did_you_mean(name, list(self.contexts))
            raise AdminError(
                f"there is no context {name!r} in {contexts_file()}: `dledger context list` shows those that there "
                f"are, `dledger context add` makes one{hint}"
            )
        return self.contexts[name]


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file with the contexts."""
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "dledger" / "contexts.toml"


def load() -> Contexts:
    """Return the user's contexts, none if there is no file. Raises `AdminError` for a file that is wrong."""
    path = contexts_file()
    try:
        contexts = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8-sig")), Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise AdminError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise AdminError(f"{path} holds no contexts: {error}; mend it, or remove it and add them again") from error
    for name, context in contexts.contexts.items():
        try:
            parse_addresses(context.namesrv)
        except ClientError as error:
            raise AdminError(f"{path}: namesrv of context {name}: {error}") from error
    if contexts.current and contexts.current not in contexts.contexts:
        raise AdminError(
            f"{path}: the current context {contexts.current!r} is not in the file: remove the line `current`"
        )
    return contexts


def save(contexts: Contexts) -> None:
    """Replace the user's contexts; the file is the user's alone. Raises `AdminError` or `OSError`."""
    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(path, dump(msgspec.to_builtins(contexts)).encode(), mode=0o600)


def require_name(name: str) -> None:
    """Raise `ValueError` for a text that cannot name a context."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is no name of a context: expected 1 to 63 letters, digits, '.', '_' and '-', the first one a "
            "letter or digit"
        )
