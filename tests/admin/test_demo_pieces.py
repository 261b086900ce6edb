"""Parts of the demonstration: pieces of files are sent, joined again, and judged."""

import os
import random
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_admin.demo.corpus import directory, key_of, name_of, standard_library
from dledger_admin.demo.rebuilding import Rebuilder
from dledger_admin.demo.report import DemoReport
from dledger_admin.demo.shipping import Shipper, longest_pause_ms
from dledger_admin.errors import AdminError

FINE = DemoReport(
    files=3, files_identical=3, files_different=[], startup_seconds=1.5, total_seconds=30.0, messages_sent=100,
    megabytes_sent=1.0, messages_received=105, megabytes_received=1.0, messages_per_second=10.0, failover_gap_ms=900.0,
    killed_node="broker-a-n0", new_leader="broker-a-n1", new_term=3, duplicates=5, out_of_order=0, replicas=3,
    replicas_identical=True, compared_bytes=1_200_000, log_problems=[],
)  # fmt: skip


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_any_file_name_survives_as_a_key_without_a_space(raw):
    name = os.fsdecode(raw)
    key = key_of(name)
    assert name_of(key) == name
    assert key.isascii()
    assert " " not in key


def test_lines_keep_their_ends_and_make_the_file_with_its_digest(tmp_path):
    content = b"a\r\nb\n\n\x0c\nlast without end"
    (tmp_path / "f").write_bytes(content)
    (file,) = directory(tmp_path)
    assert list(file.lines()) == [b"a\r\n", b"b\n", b"\n", b"\x0c\n", b"last without end"]
    assert b"".join(file.lines()) == content
    assert file.sha256() == sha256(content).hexdigest()


def test_the_demo_text_is_the_standard_library_without_site_packages():
    files = standard_library()
    assert len(files) > 500
    assert any(file.key == "asyncio/base_events.py" for file in files)
    assert not any("site-packages" in file.key for file in files)


def test_an_input_without_files_is_refused(tmp_path):
    with pytest.raises(AdminError, match="holds no files"):
        directory(tmp_path)
    with pytest.raises(AdminError, match="is no directory"):
        directory(tmp_path / "absent")


@given(st.lists(st.binary(max_size=5), max_size=12), st.randoms(use_true_random=False), st.integers(0, 20))
def test_a_file_is_rebuilt_from_repeated_and_reordered_lines(tmp_path_factory, lines, rng: random.Random, repeats):
    target = tmp_path_factory.mktemp("rebuilt")
    complete: list[str] = []
    rebuilder = Rebuilder(target, complete.append)
    deliveries = [*range(len(lines)), -1]
    deliveries += rng.choices(deliveries, k=repeats)
    rng.shuffle(deliveries)
    for number in deliveries:
        if number < 0:
            rebuilder.closing("dir/f.py", len(lines))
        else:
            rebuilder.line("dir/f.py", number, lines[number])
    assert complete == ["dir/f.py"]
    assert (target / "dir" / "f.py").read_bytes() == b"".join(lines)
    assert (rebuilder.messages, rebuilder.duplicates) == (len(deliveries), repeats)
    in_order = Rebuilder(target, lambda _: None)
    for number, body in enumerate(lines):
        in_order.line("f", number, body)
    in_order.closing("f", len(lines))
    assert in_order.out_of_order == 0


class FakeProducer:
    """Producer that records messages in batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list]] = []

    async def send_batch(self, topic, messages, *, ordering_key, timeout):
        self.batches.append((ordering_key, list(messages)))


async def test_every_file_is_shipped_in_order_with_a_closing_message_that_counts(tmp_path):
    (tmp_path / "empty.py").touch()
    (tmp_path / "long.py").write_bytes(b"".join(b"line %d\n" % number for number in range(1200)))
    producer = FakeProducer()
    shipper = Shipper(producer, "T", lambda messages, size: None)
    await shipper.ship(directory(tmp_path), parallel=4)
    by_file: dict[str, list] = {}
    for key, batch in producer.batches:
        by_file.setdefault(key, []).extend(batch)
    assert [message.tags for message in by_file["empty.py"]] == ["closing"]
    assert by_file["empty.py"][0].properties == {"line": "0"}
    assert [message.properties["line"] for message in by_file["long.py"]] == [str(number) for number in range(1201)]
    assert b"".join(message.body for message in by_file["long.py"][:-1]) == (tmp_path / "long.py").read_bytes()
    assert shipper.messages == 1202
    assert shipper.sent_bytes == (tmp_path / "long.py").stat().st_size


def test_the_longest_pause_counts_from_the_kill_on():
    assert longest_pause_ms([1.0, 5.0, 5.5, 7.25, 7.5], since=5.25) == 1750.0
    assert longest_pause_ms([], since=1.0) == 0.0


@pytest.mark.parametrize(
    "broken",
    [
        {"files_identical": 2, "files_different": ["a.py"]},
        {"replicas_identical": False},
        {"compared_bytes": 900_000},
        {"log_problems": ["broker-a-n1: chain broken"]},
        {"out_of_order": 1},
        {"messages_received": 104},
    ],
)
def test_the_demonstration_holds_only_if_every_promise_does(broken):
    assert FINE.holds
    assert all(good for _, _, good in FINE.lines())
    report = msgspec.structs.replace(FINE, **broken)
    assert not report.holds
    assert not all(good for _, _, good in report.lines())
