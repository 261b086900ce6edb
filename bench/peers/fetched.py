"""Programs of other services, fetched into `.peers/` by exact version through the user's own `go` and `mvn`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.peers.service import CannotRunError

PEERS_DIR: Final = Path(__file__).resolve().parents[2] / ".peers"
FETCH_S: Final = 900.0
"""Time limit for one download with its build, in seconds."""
_LOAD_SOURCES: Final = Path(__file__).with_name("load")
_SHOWN_CHARACTERS: Final = 300
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def tool(name: str, needed_for: str) -> str:
    """Return the path of a program of the user. Raises `CannotRunError`."""
    path = shutil.which(name)
    if path is None:
        raise CannotRunError(f"no `{name}` on PATH, which {needed_for}")
    return path


def go_install(module: str, version: str) -> Path:
    """Return the program that `go install MODULE@VERSION` builds, from a former run if there was one.

    Raises `CannotRunError`.
    """
    name = module.split("/")[-2] if module.rsplit("/", 1)[-1].startswith("v") else module.rsplit("/", 1)[-1]
    directory = PEERS_DIR / f"{name}-{version}"
    program = directory / name
    if not program.exists():
        go = tool("go", f"builds {name}")
        directory.mkdir(parents=True, exist_ok=True)
        run([go, "install", f"{module}@{version}"], cwd=directory, environment={"GOBIN": str(directory)})
    return program


def load_program() -> Path:
    """Return the load generator in Go, built anew when its sources have changed. Raises `CannotRunError`."""
    go = tool("go", "builds the load generator")
    sources = sorted(path for path in _LOAD_SOURCES.iterdir() if path.is_file())
    key = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = PEERS_DIR / f"load-{key}"
    if not program.exists():
        PEERS_DIR.mkdir(exist_ok=True)
        unfinished = program.with_suffix(".new")
        run([go, "build", "-o", str(unfinished), "."], cwd=_LOAD_SOURCES)
        unfinished.rename(program)
    return program


def maven_jars(name: str, dependencies: Sequence[tuple[str, str, str]]) -> Path:
    """Return a directory with artifacts (group, artifact, version) and all their run-time dependencies.

    Raises `CannotRunError`.
    """
    directory = PEERS_DIR / name
    jars = directory / "lib"
    if not jars.is_dir():
        maven = tool("mvn", f"fetches {name}")
        directory.mkdir(parents=True, exist_ok=True)
        dependency_xml = "".join(_DEPENDENCY.format(*dependency) for dependency in dependencies)
        (directory / "pom.xml").write_text(_POM.format(dependency_xml), encoding="utf-8")
        unfinished = directory / "lib.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        goal = [maven, "-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        run([*goal, f"-DoutputDirectory={unfinished}"], cwd=directory)
        unfinished.rename(jars)
    return jars


def run(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, timeout_s: float = FETCH_S
) -> str:
    """Run a command to its end and return its output. Raises `CannotRunError` with its last words."""
    shown_command = f"`{Path(command[0]).name} {' '.join(command[1:2])}`"
    try:
        result = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"{shown_command} took longer than {timeout_s:g} s") from None
    if result.returncode != 0:
        output_text = " ".join((result.stderr + result.stdout).split())
        raise CannotRunError(f"{shown_command} ended with {result.returncode}: {output_text[-_SHOWN_CHARACTERS:]}")
    return result.stdout
