"""Check the documentation: links resolve, every component has a README, and no file has a path of one machine.

Reads the files that git tracks or would track. Prints one line per finding, and exits with 1 if there is any.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)|(?:src|srcset|href)="([^"]+)\"""")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#+\s+(.+?)\s*#*$", re.MULTILINE)
_FOREIGN = re.compile(r"^[a-z][a-z0-9+.-]*:|^//")
_MACHINE_PATH = re.compile(r"(?<![\w.$~})])/(?:work|home|Users|root)/\w+")
_MAY_NAME_PATHS = {"LICENSE"}


def tracked_files() -> list[Path]:
    """Return every file that git tracks or would track, relative to the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [Path(name) for name in listing.split("\0") if name and (ROOT / name).is_file()]


def anchors_of(text: str) -> set[str]:
    """Return the anchors that a hosted Markdown page gives its headings."""
    headings = _HEADING.findall(_FENCE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Yield one line for each relative link of `page` whose file or heading does not exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    prose = _CODE_SPAN.sub("", _FENCE.sub("", text))
    for match in _LINK.finditer(prose):
        link = match[1] or match[2]
        if _FOREIGN.match(link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        if not target.exists():
            yield f"{page}: link to {link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text(encoding="utf-8")):
            yield f"{page}: link to {link}: no such heading"


def missing_readmes() -> Iterator[str]:
    """Yield one line for each component of the wheel, and for other folders, that has no README."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for folder in [*(Path(package).parts[0] for package in packages), "bench", "chaos", "docker", "simulation"]:
        if not (ROOT / folder / "README.md").is_file():
            yield f"{folder}/README.md is missing: purpose, public API, lifecycle, how to test it"


def machine_paths(file: Path) -> Iterator[str]:
    """Yield one line for each line of `file` with a path of one machine."""
    try:
        text = (ROOT / file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path := _MACHINE_PATH.search(line):
            yield f"{file}:{number}: {path[0]} is a path of one machine"


def findings() -> Iterator[str]:
    """Yield every finding."""
    files = tracked_files()
    yield from missing_readmes()
    for file in files:
        if file.suffix == ".md":
            yield from broken_links(file)
        if file.name not in _MAY_NAME_PATHS:
            yield from machine_paths(file)


def main() -> int:
    """Print the findings and return the exit status."""
    all_findings = list(findings())
    print("\n".join(all_findings) or "documentation: all links resolve, every component has a README")
    return 1 if all_findings else 0


if __name__ == "__main__":
    sys.exit(main())
