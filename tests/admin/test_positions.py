"""The options of `consume` set where it begins and ends, and the queues that it reads."""

import time

import click
import pytest
from command_fakes import refused

from dledger_admin.commands import options
from dledger_admin.commands.positions import QueueName, QueueNameType, chosen_queues, parse_end, parse_position
from dledger_admin.errors import AdminError, WrongUsageError
from dledger_admin.operations.positions import AtTime, Edge, FromEnd, Offset, find
from dledger_client import MessageQueue

ZERO, ONE = (MessageQueue("orders", "broker-a", queue_id) for queue_id in (0, 1))
OTHER = MessageQueue("orders", "broker-b", 1)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Edge.BEGINNING),
        ("first", Edge.BEGINNING),
        ("end", Edge.END),
        ("last", Edge.END),
        ("0", Offset(0)),
        ("1200", Offset(1200)),
        ("20261125", Offset(20261125)),
        ("99999999999", Offset(99_999_999_999)),
        ("100000000000", AtTime(100_000_000_000)),
        ("1700000000000", AtTime(1_700_000_000_000)),
        ("-1", FromEnd(1)),
        ("-15", FromEnd(15)),
        ("2023-11-14T22:13:20+00:00", AtTime(1_700_000_000_000)),
    ],
)
def test_a_number_is_an_offset_counts_from_the_end_or_is_a_time(text, position):
    assert parse_position("--from", text) == position


def test_a_number_with_a_minus_and_a_unit_is_an_age(monkeypatch):
    monkeypatch.setattr(options.time, "time", lambda: 1_700_000_900.0)
    assert parse_position("--from", "-15m") == AtTime(1_700_000_000_000)
    assert parse_position("--from", "-15") == FromEnd(15)


@pytest.mark.parametrize("text", ["soon", "", "-", "-15y", "1.5", "--5", "2026-13-01", "+5"])
def test_an_invalid_position_is_refused_with_the_valid_forms(text):
    with pytest.raises(WrongUsageError, match="is no time: beginning, end, an offset such as 1200, a number"):
        parse_position("--from", text)


def test_an_end_that_is_still_to_come_is_refused():
    assert parse_end("--to", "-1h").ms < time.time() * 1000
    with pytest.raises(WrongUsageError, match="--to '9999-01-01' is still to come: without --to all messages"):
        parse_end("--to", "9999-01-01")


class Cursor:
    """Two queues. Messages 5 to 19 and 0 to 2 are kept."""

    def __init__(self):
        self.positions = {ZERO: 6, ONE: 1}

    async def seek_to_begin(self):
        self.positions = {ZERO: 5, ONE: 0}

    async def seek_to_end(self):
        self.positions = {ZERO: 20, ONE: 3}

    async def seek_to_time(self, timestamp_ms):
        self.positions = {ZERO: timestamp_ms, ONE: 3}


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        (Edge.BEGINNING, (5, 0)),
        (Edge.END, (20, 3)),
        (Offset(2), (2, 2)),
        (FromEnd(10), (10, 0)),
        (FromEnd(100), (5, 0)),
        (AtTime(17), (17, 3)),
    ],
)
async def test_a_place_is_found_in_each_queue(position, offsets):
    assert await find(Cursor(), position) == dict(zip((ZERO, ONE), offsets, strict=True))


def test_a_queue_is_named_by_its_id_or_with_its_broker_group():
    convert = QueueNameType().convert
    assert convert("1", None, None) == QueueName(None, 1)
    assert convert("broker-b/1", None, None) == QueueName("broker-b", 1)
    assert chosen_queues([ZERO, ONE, OTHER], [QueueName(None, 1)], "orders") == [ONE, OTHER]
    assert chosen_queues([ZERO, ONE, OTHER], [QueueName("broker-b", 1)], "orders") == [OTHER]
    assert chosen_queues([ZERO, ONE], [], "orders") == [ZERO, ONE]
    with pytest.raises(AdminError, match="topic orders has no queue broker-b/0: `dledger topic describe orders`"):
        chosen_queues([ZERO, ONE, OTHER], [QueueName("broker-b", 0)], "orders")
    with pytest.raises(click.BadParameter, match="'x' is no queue: its id such as 3, or broker-a/3"):
        convert("x", None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--group", "g", "--from", "7"), "--from with --group is for a group that is new"),
        (("--group", "g", "--from", "-7"), "--from with --group is for a group that is new"),
        (("--group", "g", "--queue", "1"), "--queue goes with --group only if there is an end"),
        (("--from", "end", "--from-beginning"), "give one of the two"),
        (("--to", "end", "--exit-eof"), "give one of the two"),
        (("-f", "%s", "-k"), "three forms of a message"),
        (("-o", "json", "--key-delimiter", ":"), "three forms of a message"),
        (("--queue", "a/b"), "'a/b' is no queue"),
    ],
)
def test_options_of_consume_that_contradict_each_other_are_wrong_usage(words, said):
    assert said in " ".join(refused("consume", "--topic", "orders", *words, code=2).split())
