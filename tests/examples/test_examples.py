"""The examples run unchanged, on one cluster, in any order."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_replicated_log_alone():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "replicated_log.py"], capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "a leads ['a', 'b', 'c']"
    assert lines[1].endswith('{"answer": 42}')
    assert lines[2].startswith("a stopped, ")
    assert lines[3] == "{'answer': 42, 'question': 6}"
    assert "Traceback" not in done.stderr


def test_examples_use_distinct_names():
    names = Counter(
        name
        for path in EXAMPLES.glob("*.py")
        for name in set(re.findall(r'"(example-[\w-]+)"', path.read_text("utf-8")))
    )
    assert len(names) > 10
    assert [name for name, count in names.items() if count > 1] == []
