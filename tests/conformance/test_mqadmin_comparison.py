"""Comparison of two outputs of `mqadmin`: by names, columns and keys, without numbers and times."""

from __future__ import annotations

import pytest
from mqadmin import Command, differences, leaves, shape_of

NAMES = {"topic": "Orders", "address": "127.0.0.1:10911"}


def recorded(command: Command, printed: str) -> dict[str, list[str]]:
    return {command.words: shape_of(command, printed, NAMES)}


def test_numbers_times_and_widths_of_columns_are_passed_over() -> None:
    command = Command("topicStatus -t {topic}")
    one = "#Topic   #QID  #Last Updated\nOrders   0     2026-01-02 03:04:05,678\n"
    other = "#Topic  #QID  #Last Updated\nOrders  3  2025-12-31 23:59:59,001\nOrders  4  2025-12-31 23:59:59,002\n"
    assert differences(command, one, recorded(command, other), NAMES) == ([], [])


@pytest.mark.parametrize(
    ("printed", "more", "fewer"),
    [
        ("putTps : 1.0 2.0\nputLatency999 : 3\n", [], ["putLatency99 : <value>"]),
        ("putTps : 1.0\nputLatency99 : 3\nputLatency999 : 3\nputTpss : 1\n", ["putTpss : <value>"], []),
        ("putTps : 9.0\nputLatency99 : 0\nputLatency999 : 1\n", [], []),
    ],
)
def test_a_missing_or_renamed_figure_is_a_difference(printed: str, more: list[str], fewer: list[str]) -> None:
    command = Command("brokerStatus -b {address}", pairs=True)
    expected = recorded(command, "putTps    : 0.0\nputLatency99    : 0.1\nputLatency999   : 0.2\n")
    assert differences(command, printed, expected, NAMES) == (more, fewer)


def test_a_figure_of_a_directory_is_the_same_wherever_that_is() -> None:
    command = Command("brokerStatus -b {address}", pairs=True)
    expected = recorded(command, "commitLogDiskRatio_/home/store/commitlog: 0.45\n")
    assert differences(command, "commitLogDiskRatio_/tmp/broker-a-n0: 0.1\n", expected, NAMES) == ([], [])


def test_only_settings_with_a_rocketmq_name_are_compared() -> None:
    command = Command("getBrokerConfig -b {address}", pairs=True, settings=True)
    expected = recorded(command, "fileReservedTime = 72\nhaListenPort = 10912\n")
    printed = "fileReservedTime = 48\nfileReservdTime = 48\nmax_in_flight = 64\n"
    assert differences(command, printed, expected, NAMES) == (["fileReservdTime = <value>"], [])


def test_every_name_in_a_file_that_is_exported_is_compared_with_the_kind_of_its_value() -> None:
    exported = {"table": {"Orders": {"perm": 6, "order": False, "attributes": {}}}, "clients": ["JAVA", "GO"]}
    assert list(dict.fromkeys(leaves(exported, "file"))) == [
        "file.table.Orders.perm: number",
        "file.table.Orders.order: truth value",
        "file.table.Orders.attributes: empty",
        "file.clients[]: text",
    ]
