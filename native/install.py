"""`make native`: installs the native part into this interpreter's environment, from a wheel or with cargo.

A wheel in `dist` is installed if it was built from the present sources. Any other wheel is ignored and named, because a
node would not load it. If there is no such wheel, cargo builds from the sources.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Final

NATIVE: Final = Path(__file__).resolve().parent
DIST: Final = NATIVE / "dist"
_MARK: Final = re.compile(rb"dledger_native sources ([0-9a-f]{8})")
_NOTHING: Final = (
    "no native part: cargo is not found (https://rustup.rs), and native/dist holds no wheel of these sources;"
    " everything works without it"
)


def sources_here(directory: Path = NATIVE) -> str:
    """Return the checksum of the sources in a directory, as `build.rs` computes it."""
    named = ("Cargo.lock", "Cargo.toml", "build.rs")
    paths = sorted([*named, *(f"src/{path.name}" for path in (directory / "src").glob("*.rs"))])
    checksum = 0
    for path in paths:
        checksum = zlib.crc32((directory / path).read_bytes(), zlib.crc32(path.encode(), checksum))
    return f"{checksum:08x}"


def sources_of(wheel: Path) -> str | None:
    """Return the checksum of the sources from which a wheel was built, None if the wheel has none."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith(".so") and (found := _MARK.search(files.read(name))):
                return found[1].decode()
    return None


def choose(wheels: list[Path], sources: str, *, has_cargo: bool) -> tuple[Path | None, str]:
    """Return the wheel or directory to install, and a text about it; None if nothing can be installed."""
    for wheel in wheels:
        if sources_of(wheel) == sources:
            return wheel, f"native part: from {wheel.name}, which was built from these sources"
    passed_over = f"; passed over, built from other sources: {', '.join(one.name for one in wheels)}" if wheels else ""
    if has_cargo:
        return NATIVE, f"native part: built here with cargo{passed_over}"
    return None, f"{_NOTHING}{passed_over}"


def main() -> None:
    """Install the native part if possible, and print what was installed."""
    wheels = sorted(DIST.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    what, said = choose(wheels, sources_here(), has_cargo=shutil.which("cargo") is not None)
    if what is None:
        sys.exit(said)
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    sys.exit(subprocess.run([*pip, "--force-reinstall", "--no-deps", str(what)], check=False).returncode)


if __name__ == "__main__":
    main()
