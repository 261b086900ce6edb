"""Compiles the disk shim, with the system's C compiler or with PyPI's `ziglang`, once per user and source."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from dledger_base.extras import install_command

from ..cache import tool_directory
from ..errors import BuildError

SOURCES: Final = Path(__file__).with_name("shim")

_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC")
_LIBRARIES: Final = ("-ldl", "-lpthread")


def disk_shim() -> Path:
    """Return the compiled library; raises `BuildError` where it cannot be had: no Linux, or no compiler."""
    if not sys.platform.startswith("linux"):
        raise BuildError(f"disk, power and clock faults need Linux (LD_PRELOAD), this is {sys.platform}")
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))).hexdigest()[:16]
    library = tool_directory("disk-shim") / f"shim-{key}.so"
    if not library.exists():
        _compile(library)
    return library


def _compile(library: Path) -> None:
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [*find_compiler(), *_FLAGS, "-o", str(unfinished), str(SOURCES / "shim.c"), *_LIBRARIES]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` ended with exit code {done.returncode}: {done.stderr.strip()}")
    unfinished.replace(library)


def find_compiler() -> list[str]:
    """Return the command that compiles C; raises `BuildError`."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise BuildError(f"no C compiler found (looked for cc, gcc, clang, ziglang): {install_command('cc')}")
