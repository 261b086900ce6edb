"""Sources and jars of RocketMQ's integration suite, fetched by the user's own Maven, patched, and compiled.

No broker of RocketMQ runs. `java/` has replacements for its `BrokerController` and `NamesrvController`, which send
requests to a cluster that runs elsewhere. They precede RocketMQ's jars on the class path, so the suite's sources need
hardly any change.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
RELEASE: Final = "5.3.3"
FETCH_SECONDS: Final = 900
COMPILE_SECONDS: Final = 600
PACKAGE: Final = "org/apache/rocketmq/test"
_TESTS: Final = f"src/test/java/{PACKAGE}"
_STARTS: Final = re.compile(
    r"    public static NamesrvController createAndStartNamesrv\(\).*?(?=    public static boolean initTopic\()",
    re.DOTALL,
)
"""Methods of `IntegrationTestBase` that start RocketMQ's servers inside the JVM."""
_STAND_INS: Final = """\
    public static NamesrvController createAndStartNamesrv() {
        return new NamesrvController(Integer.getInteger("suite.namesrv.port"));
    }

    public static BrokerController createAndStartBroker(String nsAddr) {
        return BrokerController.next(nsAddr);
    }

"""


class SuiteError(Exception):
    """Error of fetching, patching or compiling the suite. The text gives the reason."""


def build(folder: Path, left_out: Mapping[str, str], statements: Mapping[str, str]) -> list[str]:
    """Fetch, patch and compile the suite below `folder`, and return the names of its test classes.

    Sources and jars are kept between runs. Everything made from them is made again. Raise `SuiteError` on failure.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _fetch(folder)
    for made in ("suite", "classes"):
        shutil.rmtree(folder / made, ignore_errors=True)
        (folder / made).mkdir()
    _unpack(folder)
    tests = folder / "suite" / _TESTS
    _leave_out(folder / "suite", left_out)
    for name, text in statements.items():
        _edit(tests / f"{name.replace('.', '/')}.java", partial(without_statements, text=text))
    _edit(tests / "base/IntegrationTestBase.java", lambda source: _STARTS.sub(lambda _: _STAND_INS, source))
    _compile(folder)
    found = (path.relative_to(tests).with_suffix("") for path in tests.rglob("*IT.java"))
    return sorted(".".join(path.parts) for path in found if path.name != "GrpcBaseIT")


def without_method(source: str, name: str) -> str:
    """Cut a method with its annotation out of Java source. Raise `SuiteError` if there is none."""
    head = re.search(rf"(\n    @Test[^\n]*)?\n    [\w ]*\b{name}\([^)]*\)[^{{;]*{{", source)
    if head is None:
        raise SuiteError(f"there is no method {name}")
    end = re.compile(r"\n    }\n").search(source, head.end())
    if end is None:
        raise SuiteError(f"the method {name} has no end")
    return source[: head.start()] + source[end.end() - 1 :]


def without_statements(source: str, text: str) -> str:
    """Cut each statement that contains a text out of Java source."""
    return re.sub(rf"\n[^;{{}}]*{re.escape(text)}[^;]*;", "", source)


def _fetch(folder: Path) -> None:
    """Let Maven copy the release's sources, and the jars that the suite needs."""
    maven = shutil.which("mvn")
    if maven is None or shutil.which("javac") is None:
        raise SuiteError("install a JDK (11 or newer) and Maven")
    wanted, fetched = (HERE / "pom.xml").read_text(encoding="utf-8"), folder / "fetched.xml"
    if fetched.exists() and fetched.read_text(encoding="utf-8") == wanted:
        return
    (folder / "pom.xml").write_text(wanted, encoding="utf-8")
    shutil.rmtree(folder / "lib", ignore_errors=True)
    quiet = [maven, "-q", "-B", "-ntp"]
    jars = ("-DincludeScope=runtime", "-DoutputDirectory=lib", f"-Drocketmq={RELEASE}")
    _run([*quiet, "dependency:copy-dependencies", *jars], folder, FETCH_SECONDS)
    artifact = f"-Dartifact=org.apache.rocketmq:rocketmq-all:{RELEASE}:zip:source-release"
    _run([*quiet, "dependency:copy", artifact, f"-DoutputDirectory={folder / 'release'}"], folder, FETCH_SECONDS)
    fetched.write_text(wanted, encoding="utf-8")


def _unpack(folder: Path) -> None:
    """Unpack the module with the tests into `suite`."""
    archive = next((folder / "release").glob("*.zip"))
    with zipfile.ZipFile(archive) as release:
        for entry in release.infolist():
            inside = entry.filename.split("/", 1)[-1]
            if inside.startswith("test/src/") and not entry.is_dir():
                target = folder / "suite" / inside.removeprefix("test/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(release.read(entry))


def _leave_out(suite: Path, left_out: Mapping[str, str]) -> None:
    """Remove the excluded packages, classes and methods."""
    for name in left_out:
        class_name, _, method = name.partition("#")
        for kind in ("main", "test"):
            path = suite / f"src/{kind}/java" / PACKAGE / class_name.removesuffix(".*").replace(".", "/")
            source = path.with_name(path.name + ".java")
            if class_name.endswith(".*"):
                shutil.rmtree(path, ignore_errors=True)
            elif source.exists() and method:
                _edit(source, partial(without_method, name=method))
            elif source.exists():
                source.unlink()


def _edit(path: Path, change: Callable[[str], str]) -> None:
    """Change a source. Fail if nothing changes, since the change was then written for another release."""
    before = path.read_text(encoding="utf-8")
    after = change(before)
    if after == before:
        raise SuiteError(f"{path.name} of release {RELEASE} has nothing of what is to be changed")
    path.write_text(after, encoding="utf-8")


def _compile(folder: Path) -> None:
    sources = [*(folder / "suite" / "src").rglob("*.java"), *(HERE / "java").glob("*.java")]
    (folder / "sources.txt").write_text("\n".join(map(str, sources)), encoding="utf-8")
    options = ("-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", "lib/*", "-d", "classes")
    _run([str(shutil.which("javac")), *options, "@sources.txt"], folder, COMPILE_SECONDS)
    shutil.copytree(folder / "suite/src/test/resources", folder / "classes", dirs_exist_ok=True)
    (folder / "classes/rmq.logback-test.xml").unlink()  # it would log everything into the user's home


def _run(command: list[str], folder: Path, seconds: float) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{command[0]} took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise SuiteError(f"{' '.join(command[:6])} failed: {(done.stdout + done.stderr)[-3000:]}")
