"""Access control under requests of all kinds: a few here, `make fuzz-access REQUESTS=1000000` for more."""

import asyncio
import os

from fuzz_access import Fuzz


def test_no_request_gets_around_access_control_or_makes_a_handler_fail() -> None:
    requests, seed = int(os.environ.get("FUZZ_REQUESTS", "1500")), int(os.environ.get("FUZZ_SEED", "1"))
    fuzz = Fuzz(seed)
    try:
        asyncio.run(fuzz.run(requests))
    finally:
        for who, count in sorted(fuzz.asked.items()):
            print(f"{count:9,} {who}")
        print(f"{fuzz.asked.total():9,} requests, seed {seed}; answers by code: {dict(sorted(fuzz.answers.items()))}")
    senders = {"nobody", "unsigned", "forged", "unknown", "app", "admin", "mangled"}
    assert {who.split(" ")[0] for who in fuzz.asked} == senders
