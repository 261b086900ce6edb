"""A secured cluster survives costly requests of strangers: the short form of `make fuzz-wire`, without its times."""

from __future__ import annotations

import ssl
import time

from dledger_remoting.codes import ResponseCode
from tests.integration.fuzz_wire import Cluster, Generator, require_whole, secured, send

ATTACKS = 150
REPETITIONS, PAUSE_S = 300, 0.1
PATIENT = "election_min_ms = 4000\nelection_max_ms = 8000\n"
"""The claim is about what requests cost, and other tests on the same cores starve a leader for seconds.

How long a request may hold the loop is asserted in processor time by `tests/broker/requests/test_cost_of_frames.py`.
"""


def sent(cluster: Cluster, connection: ssl.SSLSocket) -> int:
    """Send as clients do, and repeat a send that was refused as busy, since nothing of it is stored."""
    for _ in range(REPETITIONS):
        code = send(cluster, connection)
        if code != ResponseCode.SYSTEM_BUSY:
            break
        time.sleep(PAUSE_S)
    return code


def test_costly_requests_change_no_leader_and_take_little_memory():
    with secured(PATIENT) as cluster:
        before = cluster.leader()
        with cluster.connect(cluster.base + 10 * before[0]) as bystander:
            assert send(cluster, bystander, bytes(2 << 20)) == 0
            generator = Generator(cluster, seed=1)
            for _ in range(ATTACKS):
                generator.attack()
                assert sent(cluster, bystander) == ResponseCode.SUCCESS
            require_whole(cluster, before)
            generator.close()
