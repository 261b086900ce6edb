"""Real file system of a few megabytes, on which a program of a test runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_FILL_THE_DISK = """
import sys
from pathlib import Path

import pytest

ROOT = Path(sys.argv[1])

def fill_the_disk():
    with pytest.raises(OSError), (ROOT / "other").open("ab", buffering=0) as other:
        while other.write(bytes(4096)) == 4096:
            pass
"""


def output_on_a_small_disk(tmp_path: Path, megabytes: int, program: str, *arguments: str) -> str:
    """Run a program on a small file system, whose `ROOT` it may fill by `fill_the_disk`, and return its output."""
    unshare = shutil.which("unshare")
    mounted = tmp_path / "small"
    mounted.mkdir()
    inside = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size={megabytes}m tmpfs {mounted}"
    if unshare is None or subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no file system of one's own (unshare --user --mount)")
    script = tmp_path / "script.py"
    script.write_text(_FILL_THE_DISK + program)
    done = subprocess.run(
        [*inside, " ".join([mount, "&& exec", sys.executable, str(script), str(mounted), *arguments])],
        env={"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr
