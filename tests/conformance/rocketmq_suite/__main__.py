"""RocketMQ's own integration suite against a cluster of three groups: `make test-rocketmq`.

`python -m tests.conformance.rocketmq_suite [CLASS[#METHOD] ...]`, classes named below `org.apache.rocketmq.test`. It
takes the sources of release 5.3.3 from Maven, with the user's own settings, and starts the cluster under test.
`expected.toml` lists the excluded tests and the known failures. Logs of each class are in `.rocketmq-suite/logs`. The
exit status is 1 if a test fails that is not known to fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Final

from dledger_base.issuing import Authority
from dledger_client.testing import LocalCluster
from tests.conformance.rocketmq_suite.running import Row, Verdict, run_class
from tests.conformance.rocketmq_suite.sources import HERE, SuiteError, build

FOLDER: Final = HERE.parents[2] / ".rocketmq-suite"
GROUPS: Final = 3
"""Number of broker groups, which the suite expects."""
SIDE_BY_SIDE: Final = 3
"""Number of classes that run at a time. They use separate topics and groups, and mostly wait."""


def main() -> int:
    """Run the suite, or the named classes, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make test-rocketmq", description=__doc__.splitlines()[0])
    parser.add_argument("classes", nargs="*", metavar="CLASS[#METHOD]", help="only these")
    parser.add_argument("--namesrv", help="a cluster that runs already, instead of one of its own")
    chosen = parser.parse_args()
    expected = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    began = time.monotonic()
    try:
        names = build(FOLDER, expected["left_out"], expected["statements"])
        print(f"built {len(names)} classes in {time.monotonic() - began:.0f} s", flush=True)
        wanted = chosen.classes or names
        if chosen.namesrv:
            rows = run(wanted, chosen.namesrv)
        else:
            with tempfile.TemporaryDirectory(prefix="rocketmq-suite-") as certificates:
                with LocalCluster(groups=GROUPS, config=configuration(Path(certificates))) as cluster:
                    rows = run(wanted, cluster.namesrv)
    except SuiteError as error:
        print(f"make test-rocketmq: {error}", file=sys.stderr)
        return 2
    verdict = Verdict.of(rows, expected["known"])
    print(f"\n{verdict.table()}, in {time.monotonic() - began:.0f} s")
    return 1 if verdict.red else 0


def configuration(folder: Path) -> str:
    """Return the settings that the suite needs: TLS beside plain connections, for its tests of TLS."""
    authority = Authority("a test", timedelta(days=1))
    authority.issue("node", ["127.0.0.1"]).write(folder / "node.pem", folder / "node-key.pem")
    own = f'tls = "permissive"\ntls_cert_file = "{folder}/node.pem"\ntls_key_file = "{folder}/node-key.pem"\n'
    return f"{own}[namesrv]\n{own}"


def run(classes: Sequence[str], namesrv: str) -> list[Row]:
    """Run classes side by side, and print each test as its class ends."""
    methods: dict[str, list[str]] = {}
    for wanted in classes:
        name, _, method = wanted.partition("#")
        methods.setdefault(name, []).extend([method] if method else [])
    rows: list[Row] = []
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for found in pool.map(lambda name: run_class(FOLDER, namesrv, name, methods[name]), methods):
            for row in found:
                print(f"{row.outcome:8} {row.seconds:6.1f} s  {row.test}  {row.reason}", flush=True)
            rows.extend(found)
    return rows


if __name__ == "__main__":
    sys.exit(main())
