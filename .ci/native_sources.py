"""Write the checksum of the native part's sources into the module that loads the native part, or check the checksum.

A node ignores a native part that was built from other sources. `.ci/native_sources.py --write` writes the checksum.
Without `--write`, a wrong checksum is a finding, and the exit status is 1.
"""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
LOADER = ROOT / "base" / "dledger_base" / "native_part.py"
SOURCES = re.compile(r'(?m)^SOURCES: Final = "dledger_native sources ([0-9a-f]{8})"$')


def install_module() -> ModuleType:
    """Return the module that installs the native part, which computes the checksum."""
    spec = spec_from_file_location("native_install", ROOT / "native" / "install.py")
    if spec is None or spec.loader is None:
        sys.exit("native/install.py is missing")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Write or check the checksum, and return the exit status."""
    text = LOADER.read_text(encoding="utf-8")
    checksum = install_module().sources_here()
    updated = SOURCES.sub(f'SOURCES: Final = "dledger_native sources {checksum}"', text)
    if "--write" in sys.argv[1:]:
        LOADER.write_text(updated, encoding="utf-8")
    elif updated != text:
        print(f"{LOADER.relative_to(ROOT)}: SOURCES is not the checksum of native/ ({checksum}): make fix")
        return 1
    print(f"{LOADER.relative_to(ROOT)}: SOURCES is the checksum of native/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
