"""Console of a local cluster: a process beside those of the cluster, which it does not need.

`up` starts it last and stops it with the cluster; `down` stops it, too. A taken port keeps no cluster from starting.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from ..errors import AdminError
from .files import make_directory, write_durably
from .layout import HOST, ClusterLayout
from .ports import describe_listener, is_free
from .processes import Service, stop_at_once
from .securing import secure_folder
from .toml_text import TomlTable, dump

CONSOLE: Final = "console"
"""Name of the console among the processes of a cluster, and of its directory."""

START_SECONDS: Final = 20.0
"""Time limit for the console to begin to serve. It takes a second on a quiet machine."""

_POLL_SECONDS: Final = 0.03
_CONNECT_SECONDS: Final = 1.0

DEFAULT_CONSOLE_PORT: Final = 9880
"""Port of the console unless another is given. A second cluster of a machine needs another."""


def console_service(layout: ClusterLayout) -> Service:
    """Return the console's process."""
    return Service(CONSOLE, "dledger_console", layout.data_dir / CONSOLE / "console.toml")


def start_console(layout: ClusterLayout, port: int, say: Callable[[str], None], *, secured: bool) -> str | None:
    """Start the console of a cluster, and return its address; port 0 means none. A `secured` cluster has TLS.

    Returns None also if the port is taken or the console ends at once, and says why: a cluster works without it. A
    console that runs already is started again. Returns once the console answers.
    """
    service = console_service(layout)
    if service.pid() is not None:
        stop_at_once({CONSOLE: service})
    if port == 0:
        return None
    if not is_free(port):
        say(
            f"no console: port {port} is in use by {describe_listener(port)}; choose another with --console-port, or "
            "--console-port 0 for none"
        )
        return None
    table: TomlTable = {"namesrv": layout.namesrv_address, "host": HOST, "port": port}
    if secured:
        table["tls_ca_file"] = str(secure_folder(layout) / "ca.pem")
    try:
        make_directory(service.directory, parents=True)
        write_durably(service.config_file, dump(table).encode())
        process = service.spawn()
    except (AdminError, OSError) as error:
        say(f"no console: {error}")
        return None
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port):
        if process.poll() is not None or time.monotonic() >= deadline:
            stop_console(layout)
            say(f"no console: it did not begin to serve: {service.last_words()}")
            return None
        time.sleep(_POLL_SECONDS)
    return f"http://{HOST}:{port}/"


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def stop_console(layout: ClusterLayout) -> None:
    """Stop the console of a cluster, if it runs."""
    stop_at_once({CONSOLE: console_service(layout)})
