"""`python -m tests.native.fuzz`: mutated records through the native part and its twins, as many as are asked for.

What the native part takes, its twin must read alike; what it does not take is the twin's. A crash of the process, an
exception, or a difference ends it, and the seed that is printed repeats it.
"""

from __future__ import annotations

import importlib
import random
import time

import click
import numpy as np

from dledger_broker.views import keyscan, scan
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

native = importlib.import_module("dledger_native")

HOST = HostAddress("10.0.0.9", 4000)
BYTES = (0, 1, 2, 3, 0x20, 0x7F, 0x80, 0xFF)
SHOWN_EVERY_S = 20.0
PIECES = (
    b"TAGS\x01",
    b"\x02TAGS\x01",
    b"KEYS\x01a b\x02",
    b"UNIQ_KEY\x01",
    b"\x01",
    b"\x02",
    bytes(4),
    b"\xda\xa3\x20\xa7",
)


def sound_entry(rng: random.Random) -> bytearray:
    """A few sound records, mostly of one producer."""
    data = bytearray()
    for number in range(rng.randint(1, 4)):
        properties = b"UNIQ_KEY\x01%016X\x02TAGS\x01%b\x02KEYS\x01x y%d\x02" % (
            number,
            rng.choice((b"a", b"b")),
            number,
        )
        data += encode_record(
            MessageRecord(
                topic=rng.choice(("A", "A", "topic")),
                queue_id=rng.randrange(2),
                queue_offset=number,
                physical_offset=number,
                body=bytes(rng.randrange(40)),
                properties=properties[: rng.choice((0, 20, 99, 99, 99))],
                sys_flag=rng.choice((0, 0, 0, 12)),
                born_timestamp=1,
                born_host=HOST,
                store_timestamp=number,
                store_host=HOST,
            )
        )
    return data


def mutate(rng: random.Random, data: bytearray) -> None:
    """Change some bytes, in place."""
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        if not data:
            return
        at = rng.randrange(len(data))
        kind = rng.randrange(6)
        if kind < 3:
            data[at] = rng.choice(BYTES) if kind else data[at] ^ 1 << rng.randrange(8)
        elif kind == 3:
            data[at : at + 4] = (rng.choice((0, 1, len(data), 2**31 - 1, 2**31, 2**32 - 1))).to_bytes(4, "big")
        elif kind == 4:
            piece = rng.choice(PIECES)
            data[at : at + rng.choice((0, len(piece)))] = piece
        else:
            del data[at : at + rng.choice((1, 4, len(data)))]


def compare_records(data: bytes) -> int:
    """How many of the two scanners took it; each as its twin."""
    taken = 0
    runs = native.scan_runs(data, 77)
    if runs is not None:
        taken += 1
        assert runs == scan._scan_one_by_one(data, 77)
    rows = native.scan_keys(data, [(0, len(data))])
    if rows is not None:
        taken += 1
        assert np.array_equal(np.frombuffer(rows, keyscan.KEYS_TYPE), keyscan._scan_in_python(data, [(0, len(data))]))
    return taken


@click.command()
@click.option("--cases", default=1_000_000, show_default=True, help="So many mutated inputs.")
@click.option("--seed", default=1, show_default=True)
def main(cases: int, seed: int) -> None:
    """Feed mutated records to the native part, and compare what it takes with its twin."""
    taken, shown_at = 0, time.monotonic()
    for number in range(cases):
        rng = random.Random(f"{seed} {number}")
        data = sound_entry(rng)
        mutate(rng, data)
        try:
            taken += compare_records(bytes(data))
        except BaseException:
            click.echo(f"seed {seed}, case {number}: {bytes(data).hex()}", err=True)
            raise
        if time.monotonic() - shown_at > SHOWN_EVERY_S:
            shown_at = time.monotonic()
            click.echo(f"{number + 1:,} cases")
    click.echo(f"{cases:,} cases of seed {seed}: {taken:,} answers, each that of its twin")


if __name__ == "__main__":
    main()
