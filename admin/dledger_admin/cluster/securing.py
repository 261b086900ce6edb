"""Certificates, keys and an administrator's account of a cluster that `up --secure` has made safe.

All lie in the folder `secure` of the cluster's directory, which its owner alone can read; a cluster that has it is
started with it from then on.

| file | is |
|---|---|
| `ca.pem` | the authority that has signed `node.pem`, for everybody who connects; its key was never written |
| `node.pem`, `node-key.pem` | the certificate of the name server and of all nodes, for 127.0.0.1 and localhost |
| `access.keys` | the key file of access control |
| `credentials` | the administrator's account and secret, a line each, for `DLEDGER_CREDENTIALS` |
| `tools.yml` | the same for `conf/tools.yml` of `mqadmin` |
| `client.env` | the variables of commands, for a shell's `.` |
"""

from __future__ import annotations

import secrets
import shlex
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Final

from dledger_remoting.root_account import KEY_BYTES, root_credentials
from dledger_serving.tls_keys import ENFORCING

from ..errors import AdminError
from .files import being_written, make_directory, write_durably
from .layout import HOST, ClusterLayout
from .toml_text import TomlTable

_LIFE: Final = timedelta(days=5 * 365)
_PRIVATE: Final = 0o600


def secure_folder(layout: ClusterLayout) -> Path:
    """Where it all lies."""
    return layout.data_dir / "secure"


def is_secured(layout: ClusterLayout) -> bool:
    """Whether a cluster is started with TLS and access control; the certificate is written last."""
    return (secure_folder(layout) / "node.pem").exists()


def make_secure(layout: ClusterLayout) -> None:
    """Write what is not there yet, and let nobody else read the messages. Raises `AdminError` if the disk is full or
    the key file cannot be used, or `OSError`.
    """
    from dledger_serving.issuing import Authority  # needs the extra `broker`, as every process that is started does

    folder = secure_folder(layout)
    make_directory(folder)
    with being_written(folder):
        layout.data_dir.chmod(0o700)
        folder.chmod(0o700)
    keys = folder / "access.keys"
    if not keys.exists():
        write_durably(keys, b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n", _PRIVATE)
    try:
        account = root_credentials(keys)
    except ValueError as error:
        raise AdminError(str(error)) from None
    for name, text in (
        ("credentials", f"{account.access_key}\n{account.secret}\n"),
        ("tools.yml", f"accessKey: {account.access_key}\nsecretKey: {account.secret}\n"),
        ("client.env", _environment(layout)),
    ):
        write_durably(folder / name, text.encode(), _PRIVATE)
    if not is_secured(layout):
        authority = Authority(f"dledger up {layout.data_dir.name}", _LIFE)
        node = authority.issue(HOST, [HOST, "localhost"])
        write_durably(folder / "ca.pem", authority.certificate)
        write_durably(folder / "node-key.pem", node.key, _PRIVATE)
        write_durably(folder / "node.pem", node.certificate)


def secured_broker_keys(layout: ClusterLayout) -> TomlTable:
    """What a node's configuration has more; nothing of a cluster that is not secured."""
    if not is_secured(layout):
        return {}
    authority = str(secure_folder(layout) / "ca.pem")
    return {**secured_namesrv_keys(layout), "tls_namesrv_ca_file": authority, "tls_peer_ca_file": authority}


def secured_namesrv_keys(layout: ClusterLayout) -> TomlTable:
    """What the name server's configuration has more."""
    if not is_secured(layout):
        return {}
    folder = secure_folder(layout)
    return {
        "tls": ENFORCING,
        "tls_cert_file": str(folder / "node.pem"),
        "tls_key_file": str(folder / "node-key.pem"),
        "access_key_file": str(folder / "access.keys"),
    }


def how_to_connect(layout: ClusterLayout) -> list[str]:
    """Five lines for whoever has just started a secured cluster; none of another."""
    if not is_secured(layout):
        return []
    folder = secure_folder(layout)
    python = f'Producer("{layout.namesrv_address}", tls=Tls("{folder}/ca.pem"), credentials=Credentials(...))'
    java = "-Dtls.enable=true -Dtls.test.mode.enable=false -Dtls.client.authServer=true"
    return [
        f"secured: TLS and access control; certificates, keys and an administrator's account are in {folder}",
        f"dledger: . {folder}/client.env",
        f"Python:  {python}, account and secret as in {folder}/credentials",
        f"Java:    {java} -Dtls.client.trustCertPath={folder}/ca.pem, and an AclClientRPCHook with the same account",
        f"mqadmin: the same settings in JAVA_OPT, and {folder}/tools.yml as conf/tools.yml of its ROCKETMQ_HOME",
    ]


def _environment(layout: ClusterLayout) -> str:
    folder = secure_folder(layout)
    variables = {
        "DLEDGER_NAMESRV": layout.namesrv_address,
        "DLEDGER_TLS_CA": str(folder / "ca.pem"),
        "DLEDGER_CREDENTIALS": str(folder / "credentials"),
        "DLEDGER_KEY_FILE": str(folder / "access.keys"),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
