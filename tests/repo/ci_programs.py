"""The files of the checkout, and the programs in `.ci/` as modules."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[str]:
    """Return the names of all files that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def ci_module(name: str) -> ModuleType:
    """Return a fresh module of a program. Programs in this folder import each other."""
    if str(ROOT / ".ci") not in sys.path:
        sys.path.append(str(ROOT / ".ci"))
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
