"""Compiler of the load generators: the system's C compiler or PyPI's `ziglang`."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from dledger_base.extras import install_command

SOURCE = Path(__file__).with_name("gen.c")
TAIL_SOURCE = Path(__file__).with_name("tail.c")
SHARED = Path(__file__).with_name("shared.h")
BUILD_DIR = Path(__file__).with_name("build")
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")


class NoCompilerError(RuntimeError):
    """Neither a system C compiler nor `ziglang` is there."""


def find_compiler() -> list[str]:
    """Return the command that compiles C. Raises `NoCompilerError`, which says how to get a compiler."""
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise NoCompilerError(f"no C compiler found (looked for cc, gcc, clang, ziglang): {install_command('cc')}")


def build_generator(build_dir: Path = BUILD_DIR, source: Path = SOURCE) -> Path:
    """Return a compiled generator. It is built anew only when its sources, compiler or flags have changed.

    Works on Linux only, because the generator waits with epoll. Raises `NoCompilerError`, or
    `subprocess.CalledProcessError` when the compiler fails.
    """
    compiler = find_compiler()
    parts = (source.read_bytes(), SHARED.read_bytes(), "\0".join([*compiler, *_FLAGS]).encode())
    program = build_dir / f"{source.stem}-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
    if not program.exists():
        build_dir.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(".new")
        subprocess.run([*compiler, *_FLAGS, "-o", str(unfinished), str(source)], check=True)
        unfinished.rename(program)
    return program
