"""Every pip line in texts about installation has a form that works."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import PackageNotFoundError
from itertools import chain, pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dledger_base import extras
from dledger_base.extras import install_command
from tests.repo.ci_programs import tracked

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = {canonicalize_name(Requirement(line).name) for line in chain(PROJECT["dependencies"], *EXTRAS.values())} - {
    canonicalize_name(PROJECT["name"])
}
WHEEL = f"dist/dledger_mq-{PROJECT['version']}-py3-none-any.whl"
CHAOS_WHEEL = WHEEL.replace("dledger_mq", "dledger_mq_chaos")
PIP_LINE = re.compile(r"(?:\bpip|\$\(PIP\)) install (?P<arguments>(?:'[^']*'|[^\s'`\"|;&)]+|[ \t])+)")
FLAGS_WITH_VALUE = {"-r"}
OTHERS = {"rocketmq-python-client"}
"""Packages of others that a guide names, and that tests install beside the project."""
COMPUTED = {
    "base/dledger_base/extras.py": {"-e '.[{extra}]' (in the checkout", "{' '.join(packages"},
    "remoting/dledger_remoting/compression.py": {"{distribution}"},
}
"""Lines that a program completes. Other tests check the completed lines."""


def pip_lines() -> list[tuple[str, str]]:
    """Yield each file with the arguments of each of its pip lines."""
    found = []
    for name in sorted(tracked()):
        path = ROOT / name
        if name.startswith("tests/") or path.suffix in {".svg", ".json"}:
            continue
        lines = PIP_LINE.finditer(path.read_text(encoding="utf-8", errors="replace"))
        found += [(name, line["arguments"].partition(" #")[0].strip()) for line in lines]
    return found


LINES = pip_lines()


def objection(argument: str) -> str | None:
    """Return the reason why pip cannot install an argument, or None if it can."""
    place, _, listed = argument.partition("[")
    unknown = {extra for extra in listed.removesuffix("]").split(",") if extra} - {*EXTRAS}
    if unknown:
        return f"there is no extra {unknown}"
    # the checkout, make wheel, the image's own wheel, the native part and its wheel
    if place in {".", "./chaos", WHEEL, CHAOS_WHEEL, "/opt/wheel/*.whl", "./native", "native/dist/*.whl"}:
        return None
    name = re.split(r"[<>=!~; ]", argument)[0]
    return (
        None if canonicalize_name(name) in DECLARED | OTHERS else f"no index has {argument!r}, or nothing here needs it"
    )


def objections(arguments: str) -> list[str]:
    words = shlex.split(arguments)
    files = [value for flag, value in pairwise(words) if flag in FLAGS_WITH_VALUE]
    found = [f"there is no {file}" for file in files if not (ROOT / file).is_file()]
    wanted = [word for word in words if not word.startswith("-") and word not in files]
    return found + [why for word in wanted if (why := objection(word))] + ([] if wanted or files else ["nothing"])


@pytest.mark.parametrize(("name", "arguments"), [line for line in LINES if line[1] not in COMPUTED.get(line[0], ())])
def test_a_pip_line_names_what_can_be_installed(name: str, arguments: str) -> None:
    assert objections(arguments) == []


@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra not in {"dev", "lock"}])
def test_a_missing_extra_is_answered_with_its_packages(extra: str) -> None:
    interpreter, *words = shlex.split(install_command(extra))
    assert (interpreter, words[:3]) == (sys.executable, ["-m", "pip", "install"])
    named = {canonicalize_name(Requirement(word).name): Requirement(word) for word in words[3:]}
    for wanted in map(Requirement, EXTRAS[extra]):
        if wanted.name != PROJECT["name"]:
            assert named[canonicalize_name(wanted.name)].specifier == wanted.specifier
            assert str(named[canonicalize_name(wanted.name)].marker) == str(wanted.marker)
    assert PROJECT["name"] not in named


def test_without_an_installed_package_the_checkout_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(extras, "requires", missing)
    assert install_command("broker").endswith(" -m pip install -e '.[broker]' (in the checkout)")


def test_the_wheel_and_the_command_of_an_error_bring_a_broker(tmp_path: Path) -> None:
    """The documented line installs the wheel, and the line in a command's error text then installs a broker."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    assert f"pip install {WHEEL} " in (ROOT / "docs/operations/cluster.md").read_text()
    path = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(f"pip install {WHEEL}", shell=True, cwd=tmp_path, env=path, check=True, capture_output=True)

    def up() -> str:
        command = [environment / "bin" / "dledger", "up", "--data", tmp_path / "data", "--config", "no.toml"]
        done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        return done.stderr

    refused = up()
    assert refused.startswith("Error: this command needs the extra broker (aiohttp, jinja2, prometheus_client, rich): ")
    line = refused.strip().rpartition("rich): ")[2]
    subprocess.run(line, shell=True, cwd=tmp_path, env=path, check=True, capture_output=True)
    assert "this command needs" not in up()
