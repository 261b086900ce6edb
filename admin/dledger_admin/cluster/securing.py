"""Certificates, keys and an administrator's account of a cluster that `up --secure` has secured.

All lie in the folder `secure` of the cluster's directory, which its owner alone can read. `cluster.json` says that a
cluster is secured. It then never starts without TLS and access control, even if one of these files is missing.

| file | is |
|---|---|
| `ca.pem` | the certificate of the authority that signed `node.pem`, for all clients; its key is never written |
| `node.pem`, `node-key.pem` | the certificate of the name server and of all nodes, for 127.0.0.1 and localhost |
| `access.keys` | the key file of access control |
| `credentials` | the administrator's account and secret, a line each, for `DLEDGER_CREDENTIALS` |
| `tools.yml` | the same for `conf/tools.yml` of `mqadmin` |
| `client.env` | the variables of commands, for a shell's `.` |
| `proxy.account` | account and secret of the proxy, a line each, if the cluster has one |
"""

from __future__ import annotations

import secrets
import shlex
from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from dledger_base.access_keys import KEY_BYTES, access_keys
from dledger_base.errors import ConfigError
from dledger_base.tls_keys import ENFORCING
from dledger_remoting.accounts import root_credentials

from ..errors import AdminError
from .files import being_written, make_directory, write_durably
from .layout import HOST, ClusterLayout
from .manifest import Manifest
from .toml_text import TomlTable

_CERTIFICATE_LIFETIME: Final = timedelta(days=5 * 365)
_PRIVATE_MODE: Final = 0o600
KEY_FILE: Final = "access.keys"
PROXY_ACCOUNT_FILE: Final = "proxy.account"
PROXY_ACCOUNT: Final = "up-proxy"
"""Account of the proxy that `up` starts. An operator's own proxies may use `proxy`, the name in the guide."""
_PROXY_SECRET_BYTES: Final = 24
_CERTIFICATE_FILES: Final = ("ca.pem", "node-key.pem", "node.pem")
_FILES: Final = (KEY_FILE, "credentials", "tools.yml", "client.env", *_CERTIFICATE_FILES)
"""All files of every secured cluster, in the order in which they are written the first time."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of `up`: secure the cluster, make new certificates, make a new key file in place of a lost one."""

    secure: bool = False
    renew_certificates: bool = False
    new_key_file: bool = False


def secure_folder(layout: ClusterLayout) -> Path:
    """Return the folder of keys, certificates and secrets."""
    return layout.data_dir / "secure"


def with_security(layout: ClusterLayout, manifest: Manifest) -> Manifest:
    """Return the manifest, marked as secured if one of the files exists.

    Earlier versions did not mark it in `cluster.json`.
    """
    has_files = any((secure_folder(layout) / name).exists() for name in _FILES)
    return msgspec.structs.replace(manifest, secured=manifest.secured or has_files)


def require_files(layout: ClusterLayout, asked: Asked, *, is_known: bool) -> None:
    """Raise `AdminError` that says what to do if a secured cluster lacks a file.

    `is_known` says that the manifest marks the cluster as secured. Without the mark a first start may have been
    interrupted. `--secure` then continues it, if only files that are written last are missing.
    """
    folder = secure_folder(layout)
    missing = [name for name in _FILES if not (folder / name).exists()]
    if asked.secure and not is_known and missing == list(_FILES[len(_FILES) - len(missing) :]):
        return
    if asked.new_key_file and KEY_FILE not in missing:
        raise AdminError(
            f"{folder / KEY_FILE} is there: --new-key-file is for a cluster that has lost it; `dledger account new-key "
            "--help` says how to change the key"
        )
    if KEY_FILE in missing and not asked.new_key_file:
        raise AdminError(
            f"{folder / KEY_FILE} is missing, and the cluster is secured: put it back from a copy, mode 0600; if there "
            "is none, `dledger up --new-key-file` makes another one, and every account needs a new secret then "
            "(`dledger account rotate`)"
        )
    missing_certificates = [str(folder / name) for name in _CERTIFICATE_FILES if name in missing]
    if missing_certificates and not asked.renew_certificates:
        raise AdminError(
            f"{', '.join(missing_certificates)} missing, and the cluster is secured: put back what was there, or have "
            "`dledger up --renew-certificates` make new certificates; clients need the new ca.pem then"
        )


def make_secure(layout: ClusterLayout, *, renew_certificates: bool = False) -> None:
    """Write the files that are missing or outdated, and let only the owner read the cluster's directory.

    Raises `AdminError` if the disk is full or the key file cannot be used, or `OSError`.
    """
    from dledger_base.issuing import Authority  # needs the extra `broker`, as brokers do

    folder = secure_folder(layout)
    make_directory(folder)
    with being_written(folder):
        layout.data_dir.chmod(0o700)
        folder.chmod(0o700)
    keys = folder / KEY_FILE
    if not keys.exists():
        write_durably(keys, b64encode(secrets.token_bytes(KEY_BYTES)) + b"\n", _PRIVATE_MODE)
    try:
        account = root_credentials(access_keys(keys))
    except ConfigError as error:
        raise AdminError(str(error)) from None
    for name, text in (
        ("credentials", f"{account.access_key}\n{account.secret}\n"),
        ("tools.yml", f"accessKey: {account.access_key}\nsecretKey: {account.secret}\n"),
        ("client.env", _format_environment(layout)),
    ):
        write_durably(folder / name, text.encode(), _PRIVATE_MODE)
    if layout.proxy is not None and not (folder / PROXY_ACCOUNT_FILE).exists():
        lines = f"{PROXY_ACCOUNT}\n{secrets.token_urlsafe(_PROXY_SECRET_BYTES)}\n"
        write_durably(folder / PROXY_ACCOUNT_FILE, lines.encode(), _PRIVATE_MODE)
    if renew_certificates or not all((folder / name).exists() for name in _CERTIFICATE_FILES):
        authority = Authority(f"dledger up {layout.data_dir.name}", _CERTIFICATE_LIFETIME)
        issued = authority.issue(HOST, [HOST, "localhost"])
        write_durably(folder / "ca.pem", authority.certificate)
        write_durably(folder / "node-key.pem", issued.key, _PRIVATE_MODE)
        write_durably(folder / "node.pem", issued.certificate)


def secured_broker_keys(layout: ClusterLayout) -> TomlTable:
    """Return the keys that the configuration of a secured node has in addition."""
    authority = str(secure_folder(layout) / "ca.pem")
    return {**secured_namesrv_keys(layout), "tls_namesrv_ca_file": authority, "tls_peer_ca_file": authority}


def secured_namesrv_keys(layout: ClusterLayout) -> TomlTable:
    """Return the keys that the configuration of a secured name server has in addition."""
    folder = secure_folder(layout)
    return {
        "tls": ENFORCING,
        "tls_cert_file": str(folder / "node.pem"),
        "tls_key_file": str(folder / "node-key.pem"),
        "access_key_file": str(folder / KEY_FILE),
        "access_control": "on",
    }


def secured_proxy_keys(layout: ClusterLayout) -> TomlTable:
    """Return the keys that the configuration of a secured cluster's proxy has in addition."""
    folder = secure_folder(layout)
    return {
        "tls": ENFORCING,
        "tls_cert_file": str(folder / "node.pem"),
        "tls_key_file": str(folder / "node-key.pem"),
        "account_file": str(folder / PROXY_ACCOUNT_FILE),
        "cluster_tls": True,
        "cluster_ca_file": str(folder / "ca.pem"),
    }


def how_to_connect(layout: ClusterLayout) -> list[str]:
    """Return the lines that tell an operator how clients connect to a secured cluster, one for each kind of client."""
    folder = secure_folder(layout)
    python = f'Producer("{layout.namesrv_address}", tls=Tls("{folder}/ca.pem"), credentials=Credentials(...))'
    java = "-Dtls.enable=true -Dtls.test.mode.enable=false -Dtls.client.authServer=true"
    lines = [
        f"secured: TLS and access control; certificates, keys and an administrator's account are in {folder}",
        f"dledger: . {folder}/client.env",
        f"Python:  {python}, account and secret as in {folder}/credentials",
        f"Java:    {java} -Dtls.client.trustCertPath={folder}/ca.pem, and an AclClientRPCHook with the same account",
        f"mqadmin: the same settings in JAVA_OPT, and {folder}/tools.yml as conf/tools.yml of its ROCKETMQ_HOME",
    ]
    if layout.proxy is not None:
        lines.append(
            f"gRPC:    {HOST}:{layout.proxy.port} with TLS, trust in {folder}/ca.pem, and the client's account"
        )
    if layout.proxy_http_port:
        url = f"https://{HOST}:{layout.proxy_http_port}"
        lines.append(f"HTTP:    curl --cacert {folder}/ca.pem --user ACCOUNT:SECRET {url}/v1/topics/TOPIC/messages …")
    return lines


def _format_environment(layout: ClusterLayout) -> str:
    folder = secure_folder(layout)
    variables = {
        "DLEDGER_NAMESRV": layout.namesrv_address,
        "DLEDGER_TLS_CA": str(folder / "ca.pem"),
        "DLEDGER_CREDENTIALS": str(folder / "credentials"),
        "DLEDGER_KEY_FILE": str(folder / "access.keys"),
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
