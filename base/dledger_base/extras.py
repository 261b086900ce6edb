"""Version of this package, and the command that installs the packages of an extra.

No index has this package. So if it is installed, the command names the packages of the extra. If it is not installed,
but on the path of a checkout, the command names the extra of the checkout.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

DISTRIBUTION: Final = "dledger-mq"
_EXTRA: Final = re.compile(r"(?:\s*\band\s+)?extra == ['\"]([\w-]+)['\"]")


def install_command(extra: str) -> str:
    """Return the shell command that installs the packages of `extra` into this interpreter's environment."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # the packages are on the path of a checkout, and not installed
        return f"{shlex.quote(sys.executable)} -m pip install -e '.[{extra}]' (in the checkout)"
    packages = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        extra_match = _EXTRA.search(marker)
        if extra_match and extra_match[1] == extra:
            condition = _EXTRA.sub("", marker).strip().replace("'", '"')
            packages.append(f"'{name.strip()}{f'; {condition}' if condition else ''}'")
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(packages)}"


def pysyncobj_version() -> str:
    """Return the version of PySyncObj; `none` if it is not installed."""
    try:
        return version("pysyncobj")
    except PackageNotFoundError:
        return "none"


def package_version() -> str:
    """Return the version of this package; `unknown` if it is on the path of a checkout and not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
