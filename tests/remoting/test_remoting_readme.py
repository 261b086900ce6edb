"""The example in the component's README runs."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "remoting" / "README.md"


def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
