"""Write the list of a release's parts (SBOM), and look for known faults of these parts.

    dist/sbom.json    CycloneDX 1.5: the packages that the image installs, and the crates of the native part

Prints one line per fault, and one per database that could not be asked. Exits with 1 if there is a fault, with 2 if
none is known and a database was not asked.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKED = ROOT / "docker" / "requirements.txt"
CRATES = ROOT / "native" / "Cargo.lock"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def packages() -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and version of every part of a release."""
    for name, version in _REQUIREMENT.findall(LOCKED.read_text(encoding="utf-8")):
        yield "pypi", name, version
    if CRATES.exists():
        for crate in tomllib.loads(CRATES.read_text(encoding="utf-8"))["package"]:
            if "source" in crate:  # crates without a source are ours
                yield "cargo", crate["name"], crate["version"]


def write_sbom() -> Path:
    """Write the list, and return its path."""
    components = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:{kind}/{name}@{version}"}
        for kind, name, version in sorted(packages())
    ]
    path = ROOT / "dist" / "sbom.json"
    path.parent.mkdir(exist_ok=True)
    sbom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    path.write_text(json.dumps(sbom, indent=2) + "\n", encoding="utf-8")
    return path


def faults_of(command: Sequence[str], read: Callable[[dict], Iterator[str]]) -> list[str] | None:
    """Return the faults that a tool reports, None if it is not installed or could not ask its database."""
    if shutil.which(command[0]) is None:
        return None
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return list(read(json.loads(result.stdout)))
    except (json.JSONDecodeError, KeyError, TypeError):
        return None


def _read_pip_audit(report: dict) -> Iterator[str]:
    for package in report["dependencies"]:
        for fault in package.get("vulns", ()):
            fixed = ", ".join(fault["fix_versions"]) or "no version"
            yield f"{package['name']} {package['version']}: {fault['id']}, mended in {fixed}"


def _read_cargo_audit(report: dict) -> Iterator[str]:
    for fault in report["vulnerabilities"]["list"]:
        yield f"{fault['package']['name']} {fault['package']['version']}: {fault['advisory']['id']}"


def main() -> int:
    """Write the list, ask the tools, and print their findings."""
    print(f"wrote {write_sbom().relative_to(ROOT)}")
    pip_audit = Path(sys.executable).with_name("pip-audit")
    faults_by_database = {
        "PyPI's advisories (pip-audit)": faults_of(
            [str(pip_audit), "--requirement", str(LOCKED), "--no-deps", "--disable-pip", "--format", "json"],
            _read_pip_audit,
        ),
        "RustSec's advisories (cargo audit)": faults_of(
            ["cargo", "audit", "--file", str(CRATES), "--json"], _read_cargo_audit
        ),
    }
    missing = [name for name, faults in faults_by_database.items() if faults is None]
    all_faults = [fault for faults in faults_by_database.values() for fault in faults or ()]
    for fault in all_faults:
        print(fault)
    for name in missing:
        print(f"not asked: {name}: the tool is not installed, or its database cannot be reached", file=sys.stderr)
    return 1 if all_faults else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
