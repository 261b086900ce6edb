"""Connections never take the file descriptors that a server needs itself."""

from __future__ import annotations

import resource

import pytest

from dledger_base import open_files
from dledger_base.open_files import OWN_FILES, room_for_connections, too_few_files


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "raised", "room"),
    [
        (1024, 20_000, 4096, 4096 + OWN_FILES, 4096),
        (20_000, 20_000, 4096, 20_000, 4096),
        (1024, 4096, 10_000, 4096, 4096 - OWN_FILES),
        (1024, 1024, 10_000, 1024, 512),
        (256, 256, 10_000, 256, 128),
        (256, 256, 100, 256, 100),
        (1024, resource.RLIM_INFINITY, 10_000, 10_000 + OWN_FILES, 10_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, resource.RLIM_INFINITY, 10_000),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes_and_the_rest_is_kept_back(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, raised: int, room: int
) -> None:
    limits = [soft, hard]
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, values: limits.__setitem__(slice(None), values))
    assert room_for_connections(wanted) == room
    assert limits == [raised, hard]


def test_a_file_limit_that_cannot_be_raised_counts_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: (1000, 2000))
    monkeypatch.setattr(open_files.resource, "setrlimit", refuse)
    assert room_for_connections(10_000) == 500
    assert "max_connections = 10000" in too_few_files(10_000, 500)
    assert "1000 files" in too_few_files(10_000, 500)
