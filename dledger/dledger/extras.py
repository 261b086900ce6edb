"""Version of this package, and the command that installs what an extra brings.

That command names packages, not the extra: no index has this package, whether it came from a checkout or from a wheel.
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
    """The shell command that brings what `extra` names into the environment of this interpreter."""
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # the packages are on the path of a checkout, and not installed
        return f"{shlex.quote(sys.executable)} -m pip install -e '.[{extra}]' (in the checkout)"
    wanted = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        found = _EXTRA.search(marker)
        if found and found[1] == extra:
            condition = _EXTRA.sub("", marker).strip().replace("'", '"')
            wanted.append(f"'{name.strip()}{f'; {condition}' if condition else ''}'")
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(wanted)}"


def package_version() -> str:
    """The version of this package; `unknown` where it is on the path of a checkout and not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
