"""A client takes its clock, its random bits and its threads from its surroundings."""

import asyncio
from contextvars import copy_context
from random import Random

from dledger_client import Message
from dledger_client.cluster.core import new_client_id
from dledger_client.cluster.surroundings import Surroundings, use, wall_ms, workers
from dledger_client.sending.outgoing import OutgoingEncoder


class Directly:
    """Workers that run at once."""

    async def run(self, function, *args, **kwargs):
        return function(*args, **kwargs)

    def close(self):
        pass


def what_a_client_makes():
    use(Surroundings(lambda: 1_700_000_000_123_456_789, Random(7).getrandbits, lambda _: Directly()))
    sent = OutgoingEncoder().encode("T", Message(b"m"))
    looked_up = asyncio.run(workers(1).run(str.upper, "a"))
    return new_client_id().partition("-")[2], sent.unique_keys[0][-20:], sent.born_timestamp_ms, wall_ms(), looked_up


def test_equal_surroundings_give_equal_results_and_do_not_leak():
    first, second = (copy_context().run(what_a_client_makes) for _ in range(2))
    assert first == second
    assert first[2:] == (1_700_000_000_123, 1_700_000_000_123, "A")
    assert wall_ms() > 1_700_000_000_123
