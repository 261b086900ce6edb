"""RocketMQ's servers from Maven Central, resolved once per user with `mvn`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from .cache import tool_directory
from .errors import BuildError

VERSION: Final = "5.3.3"
MODULES: Final = ("namesrv", "broker", "tools", "client")
RESOLVE_S: Final = 900.0

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>subject</groupId><artifactId>rocketmq</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{}</artifactId><version>{}</version>"
    "</dependency>"
)
_SHOWN_CHARACTERS: Final = 600


def java() -> str:
    """Return the path of `java`; raises `BuildError`."""
    found = shutil.which("java")
    if found is None:
        raise BuildError(f"RocketMQ {VERSION} needs Java 8 or newer, and there is no `java` on PATH")
    return found


def rocketmq_jars() -> Path:
    """Return the directory of the jars, downloading them the first time; raises `BuildError`."""
    directory = tool_directory(f"rocketmq-{VERSION}")
    jars = directory / "lib"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise BuildError(f"RocketMQ {VERSION} comes from Maven Central, and there is no `mvn` on PATH")
    dependencies = "".join(_DEPENDENCY.format(module, VERSION) for module in MODULES)
    (directory / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    unfinished = directory / "lib.new"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [maven, "-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run(
        [*command, f"-DoutputDirectory={unfinished}"],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RESOLVE_S,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stdout[-_SHOWN_CHARACTERS:]}")
    unfinished.rename(jars)
    return jars
