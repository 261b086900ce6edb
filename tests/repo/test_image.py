"""The image can be built as an engine builds it.

The tests run the Dockerfile's lines on the context that `.dockerignore` leaves.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dledger_client.testing.ports import find_free_block
from tests.repo.ci_programs import tracked

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
NOT_THERE = ("integrations/", "pipeline/")
"""Folders of packages for which the image has no frameworks: applications import them, and servers do not."""
IGNORE = (ROOT / ".dockerignore").read_text()
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = {
    "requirements.txt": PROJECT["project"]["dependencies"] + EXTRAS["broker"] + EXTRAS["proxy"],
    "requirements-build.txt": PROJECT["build-system"]["requires"],
}
"""The lock files, and the packages that each must contain at least."""


class BuildContext:
    """Rules of a `.dockerignore`, as in Docker's reference.

    The last pattern that matches a path, or one of the directories above it, decides. `!` lets through. `*` and `?` do
    not cross a slash, and `**` does.
    """

    def __init__(self, ignore_file: str) -> None:
        lines = [line.strip() for line in ignore_file.splitlines() if not line.startswith("#")]
        self._rules = [
            (not line.startswith("!"), self._compile(line.removeprefix("!").strip("/"))) for line in lines if line
        ]

    @staticmethod
    def _compile(pattern: str) -> re.Pattern[str]:
        wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
        return re.compile("".join(wildcards.get(part, re.escape(part)) for part in parts))

    def holds(self, path: str) -> bool:
        """Return whether a file, named from the root of the context, is sent to the engine."""
        names = [path, *(parent.as_posix() for parent in PurePosixPath(path).parents)]
        ignored = False
        for ignores, pattern in self._rules:
            if any(pattern.fullmatch(name) for name in names):
                ignored = ignores
        return not ignored


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile and their arguments."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in joined]


CONTEXT = BuildContext(IGNORE)
FILES = [name for name in tracked() if CONTEXT.holds(name)]
DOCKERFILE = instructions((DOCKER / "Dockerfile").read_text())


def test_context_holds_every_file_of_the_wheel() -> None:
    assert not {name for name in tracked() if name.startswith(tuple(f"{package}/" for package in PACKAGES))} - {*FILES}
    metadata = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert metadata <= {*FILES}


def test_context_holds_nothing_that_is_not_built_or_copied() -> None:
    components = {Path(package).parts[0] for package in PACKAGES}
    assert {Path(name).parts[0] for name in FILES} - components == {"docker", "pyproject.toml", "README.md", "LICENSE"}
    for litter in (".git/config", ".venv/bin/python", "data/n0/log", "dledger/dledger/__pycache__/x.pyc", "docs/x.md"):
        assert not CONTEXT.holds(litter)


def test_everything_that_is_copied_lies_in_the_context() -> None:
    of_context = [given.split()[:-1] for name, given in DOCKERFILE if name == "COPY" and "--from" not in given]
    copied = [source for sources in of_context for source in sources]
    assert "." in copied
    for source in copied:
        assert source == "." or any(name == source or name.startswith(f"{source}/") for name in FILES), source


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_file_pins_every_requirement_with_hashes_and_names_no_registry(lock: str) -> None:
    text = (DOCKER / lock).read_text()
    assert "://" not in text
    locked = {}
    for entry in re.split(r"\n(?=[a-z])", text):
        pinned = re.match(r"([\w.-]+)==(\S+) \\\n", entry)
        assert pinned, entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
        locked[canonicalize_name(pinned[1])] = pinned[2]
    for wanted in map(Requirement, LOCKS[lock]):
        assert locked[canonicalize_name(wanted.name)] in wanted.specifier, f"{wanted}: make lock"


class Image:
    """Result of the Dockerfile, below a directory that stands for `/`. Base images, users and volumes are left out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.context = root / "context"
        for name in FILES:
            self._copy(ROOT / name, self.context / name)
        self.workdir = root
        for name, given in DOCKERFILE:
            if name == "WORKDIR":
                self.workdir = Path(self.here(given))
                self.workdir.mkdir()
            elif name == "COPY" and "--from" not in given:  # the stages share one tree
                *sources, target = given.split()
                self.copy(sources, target)
            elif name == "RUN" and "useradd" not in given:
                self.run(given)

    def here(self, text: str) -> str:
        """Replace the paths of the image in `text` by those below the root."""
        return re.sub(r"(?<![\w.*/])/(?=(?:opt|src|etc)\b)", f"{self.root}/", text)

    def copy(self, sources: Iterable[str], target: str) -> None:
        destination = self.workdir / self.here(target)
        for source in sources:
            origin = self.context / source
            for file in [origin] if origin.is_file() else [path for path in origin.rglob("*") if path.is_file()]:
                within = (
                    file.relative_to(origin) if origin.is_dir() else Path(file.name if target.endswith("/") else "")
                )
                self._copy(file, destination / within)

    @staticmethod
    def _copy(file: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)

    def run(self, line: str) -> None:
        """Run a line of the Dockerfile. Packages come from pip's cache if it has them."""
        line = re.sub(r"^python ", f"{sys.executable} ", self.here(line)).replace("--no-cache-dir ", "")
        done = subprocess.run(line, shell=True, cwd=self.workdir, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def command(self, instruction: str) -> list[str]:
        """Return the last command that an instruction gives, as a command of this machine."""
        given = [given for name, given in DOCKERFILE if name == instruction][-1]
        first, *others = json.loads(given[given.index("[") :])
        return [f"{self.root}/opt/dledger/bin/{first}", *map(self.here, others)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image(tmp_path_factory.mktemp("image"))


def test_image_is_built_from_its_context_and_its_lock_files(image: Image) -> None:
    entry_point = image.command("ENTRYPOINT")
    shown = subprocess.run([*entry_point, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown == f"dledger, version {PROJECT['project']['version']}, native part: none\n"
    python = f"{image.root}/opt/dledger/bin/python"
    imported = "; ".join(f"import {Path(package).name}" for package in PACKAGES if not package.startswith(NOT_THERE))
    subprocess.run([python, "-I", "-c", imported], cwd=image.root, check=True)


@pytest.mark.parametrize(("role", "ports"), [("namesrv", (9876, 9877)), ("proxy", (8081, 8082, 8083))])
def test_health_check_of_the_image_asks_a_server_without_further_settings(
    image: Image, tmp_path: Path, role: str, ports: tuple[int, ...]
) -> None:
    base = find_free_block([*range(len(ports))])
    text = (image.root / "etc" / "dledger" / f"{role}.toml").read_text().replace("/var/lib/dledger", str(tmp_path))
    for number, port in enumerate(ports):
        text = re.sub(rf"= {port}\b", f"= {base + number}", text)
    config = tmp_path / f"{role}.toml"
    config.write_text(text.replace("0.0.0.0", "127.0.0.1").replace("namesrv:", "127.0.0.1:"))
    arguments = [*image.command("ENTRYPOINT"), role, "--config", str(config)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            assert b"ready" in server.stdout.readline()
            check = [*image.command("HEALTHCHECK"), str(server.pid)]
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "healthy\n", "")
            server.send_signal(signal.SIGSTOP)
            done = subprocess.run(check, capture_output=True, text=True, check=False)
            assert (done.returncode, "does not answer on 127.0.0.1" in done.stdout) == (1, True)
        finally:
            server.kill()
