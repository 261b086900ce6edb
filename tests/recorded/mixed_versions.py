"""Group of two nodes of an older build and one of this build: `python -m tests.recorded.mixed_versions OLD_REF`.

The nodes are real processes on loopback. Nodes lead in turn: of the old build, of the new one, of the old one. Under
each leader every node gets sends, commits and changes of topics and pins, and is asked for all of them. At the end the
logs are compared byte by byte, and so are the digests of the state that the nodes have put into them. Exit code 0 means
that nothing differed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dledger.format import iter_commands
from dledger.replica.snapshots.marks import DIGEST, Digest
from dledger.store.disk import OsDisk
from dledger.store.segments import segment_path
from dledger.store.verify import compare, inspect, verify
from tests.recorded.mixed_group import ROOT, Build, MixedError, MixedGroup, until, work_tree
from tests.recorded.mixed_workload import Workload

MARKS_APART_S: Final = 1.1
"""Pause in seconds after which a leader writes the next snapshot mark.

The pause counts from the last mark, or from the beginning of the leadership. Digests follow each mark.
"""


def run(group: MixedGroup) -> None:
    """Let one node after the other lead, and compare. Raise `MixedError` for the first difference."""
    old, other, new = group.nodes
    with group.running():
        workload = Workload(group.nodes)
        try:
            workload.begin()
            for number, leader in enumerate((old, new, other)):
                group.have_lead(leader)
                time.sleep(MARKS_APART_S)
                workload.round(f"round{number}")
                workload.check()
                print(f"{leader} led: {workload.acknowledged} messages acknowledged and found at every node")
        finally:
            workload.close()
        until(group.is_even, "every node has applied the whole log")
        terms = {node.node_id: status["term"] for node in group.nodes if (status := node.status()) is not None}
    print(f"logs are equal up to {compare_logs(group)}; the terms at the end are {terms}")
    marks = digests([node.directory for node in group.nodes])
    print(f"digests are equal at {len(marks)} marks, written in the terms {sorted(set(marks.values()))}")


def compare_logs(group: MixedGroup) -> int:
    """Return the number of bytes that all nodes have in common."""
    found = compare([verify(str(node.directory)) for node in group.nodes])
    if not found.equal:
        raise MixedError(f"the logs differ at {found.first_difference}: {found.problems}")
    return found.end_position


def digests(directories: Sequence[Path]) -> dict[int, int]:
    """Return the marks at which all nodes wrote the same digest, with the term of the first digest.

    Raise `MixedError` if two nodes differ, or if a leader's term has no such mark.
    """
    said: dict[int, dict[str, int]] = defaultdict(dict)
    terms: dict[int, int] = {}
    disk = OsDisk(str(directories[0]))
    segment_bytes = verify(str(directories[0])).segment_bytes
    for meta in inspect(str(directories[0])):
        start = meta.position - meta.position % segment_bytes
        file = disk.open(segment_path(start))
        section = file.pread(meta.channel, meta.end - meta.channel - start) if meta.channel else b""
        file.close()
        for kind, payload in iter_commands(section):
            if kind == DIGEST:
                digest = msgspec.msgpack.decode(payload, type=Digest)
                said[digest.position][digest.node_id] = digest.digest
                terms.setdefault(digest.position, meta.term)
    for position, of_nodes in said.items():
        if len(set(of_nodes.values())) > 1:
            raise MixedError(f"at the mark at {position} the states differ: {of_nodes}")
    whole = {position: terms[position] for position, of_nodes in said.items() if len(of_nodes) == len(directories)}
    if len(set(whole.values())) < len(directories):
        raise MixedError(f"not every leader's term has a mark with the digests of all nodes: {whole}")
    return whole


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded.mixed_versions", description=__doc__)
    parser.add_argument("old_ref", metavar="OLD_REF", help="commit of the older build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, work_tree(options.old_ref, Path(name) / "old") as old:
        new = Build("new", ROOT)
        try:
            for build in (old, new):
                build.check()
            run(MixedGroup(Path(name), [old, old, new]))
        except MixedError as error:
            print(f"mixed versions: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
