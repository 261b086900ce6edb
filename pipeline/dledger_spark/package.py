"""`python -m dledger_spark.package FILE`: what executors without this package need, as a zip for `--py-files`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import dledger_remoting
import dledger_spark


def write_package(target: Path) -> None:
    """Write a zip with the packages that the planner and the tasks of batch reads import."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (dledger_remoting, dledger_spark):
            folder = Path(package.__path__[0])
            for file in sorted(folder.rglob("*.py")):
                archive.write(file, str(Path(folder.name) / file.relative_to(folder)))


def main(arguments: list[str]) -> int:
    """Write the zip that the only argument names, and return the exit status."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m dledger_spark.package FILE.zip\n")
        return 2
    write_package(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
