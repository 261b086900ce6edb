"""Health check of a container: asks the server that runs in it, at the address in its configuration.

Exit status 0: it serves clients. 1: it does not, and the output says why. A container that runs no server, for example
`dledger produce`, is healthy while it runs.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from pathlib import Path

from dledger_broker.config import load_config as load_broker_config
from dledger_namesrv.config import load_config as load_namesrv_config
from dledger_proxy.config import load_config as load_proxy_config

_EVERYWHERE = ("", "0.0.0.0", "::")
_TIMEOUT_S = 2.0


def server_of(command: list[str]) -> tuple[str, Path] | None:
    """Return the role and the configuration file in a command line of `dledger`, None if it runs no server."""
    for role in ("namesrv", "broker", "proxy"):
        if role in command:
            options = command[command.index(role) + 1 :]
            for option, following in zip(options, [*options[1:], ""], strict=True):
                name, _, value = option.partition("=")
                if name == "--config":
                    return role, Path(value or following)
    return None


def obstacle(role: str, config_file: Path) -> str | None:
    """Return why the server does not serve clients, None if it does."""
    if role == "namesrv":
        namesrv = load_namesrv_config(config_file, {})
        is_secured = namesrv.tls_http
        host, port, http_port, path = namesrv.host, namesrv.port, namesrv.http_port, "/healthz"
    elif role == "proxy":
        proxy = load_proxy_config(config_file, {})
        is_secured = proxy.tls_http
        host, port, http_port, path = proxy.host, proxy.grpc_port, proxy.metrics_port, "/healthz"
    else:
        broker = load_broker_config(config_file)
        is_secured = broker.tls_http
        host, port, http_port, path = broker.host, broker.port, broker.http_port, "/readyz"
    host = "127.0.0.1" if host in _EVERYWHERE else host
    try:
        if not http_port:  # without an HTTP port, it is healthy if it listens
            socket.create_connection((host, port), _TIMEOUT_S).close()
            return None
        connection = http.client.HTTPConnection(host, http_port, timeout=_TIMEOUT_S)
        if is_secured:  # its own process answers: the name in the certificate does not matter
            context = ssl._create_unverified_context()  # noqa: S323, SLF001 - the library has no other name for it
            connection = http.client.HTTPSConnection(host, http_port, timeout=_TIMEOUT_S, context=context)
        connection.request("GET", path)
        answer = connection.getresponse()
        return None if answer.status == http.HTTPStatus.OK else answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{role} does not answer on {host}:{http_port or port}: {error}"


def main(process: str = "1") -> int:
    """Check the server with this process id. In a container the server is process 1."""
    command = Path("/proc", process, "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    server = server_of(command)
    why = obstacle(*server) if server else None
    print(why or "healthy")  # noqa: T201 - an engine shows it
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
