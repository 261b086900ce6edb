"""Boards and alarms ask for metrics that nodes show, real `promtool` accepts them, and each alarm says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "docker" / "grafana").glob("*.json"))
RULES = ROOT / "docker" / "prometheus" / "rules.yml"
RUNBOOK = (ROOT / "docs" / "operations" / "watching.md").read_text(encoding="utf-8")
METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
OF_PROMETHEUS = {"up", "process_resident_memory_bytes"}
_METRIC = re.compile(r"\b(?:dledger|rocketmq|process)_\w+|\bup\b")
_VARIABLES = {"$__rate_interval": "1m", "$cluster": "c", "$broker": "b", "$topic": "t", "$group": "g"}


def listed_metrics() -> set[str]:
    """Return every name that a query may use, as the generated reference lists them."""
    names = set()
    for line in METRICS.partition("## Nodes")[2].splitlines():
        found = re.match(r"\| `(\w+)` \| (\w+) \|", line)
        if found is not None:
            name, kind = found.groups()
            suffixes = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}.get(kind, ("",))
            names |= {f"{name}{suffix}" for suffix in suffixes}
    return names


def panels(board: Path):
    return json.loads(board.read_text(encoding="utf-8"))["panels"]


def queries(board: Path) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*words: object) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_reference_lists_what_a_real_node_and_a_name_server_show():
    done = subprocess.run([sys.executable, ".ci/metrics.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(listed_metrics()) > 150


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_every_metric_of_a_board_is_shown_by_nodes(board):
    board_text = json.loads(board.read_text(encoding="utf-8"))
    asked = [
        *queries(board),
        *(one["query"]["query"] for one in board_text["templating"]["list"] if one["type"] == "query"),
    ]
    used = {name for query in asked for name in _METRIC.findall(query)}
    assert used
    assert used - OF_PROMETHEUS - listed_metrics() == set()


def test_every_metric_of_an_alarm_is_shown_by_nodes():
    used = {name for rule in rules() for name in _METRIC.findall(rule["expr"])}
    assert used - OF_PROMETHEUS - listed_metrics() == set()


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_board_can_be_imported_beside_the_others(board):
    text = json.loads(board.read_text(encoding="utf-8"))
    assert text["uid"] == f"dledger-{board.stem}"
    assert text["templating"]["list"][0]["type"] == "datasource"
    boxes = [tuple(panel["gridPos"].values()) for panel in text["panels"]]
    assert len({(x, y) for x, y, _, _ in boxes}) == len(boxes)
    assert all(x + width <= 24 for x, _, width, _ in boxes)
    variables = {f"${one['name']}" for one in text["templating"]["list"]} | {"$__rate_interval"}
    assert {name for query in queries(board) for name in re.findall(r"\$\w+", query)} <= variables


def test_the_boards_are_those_that_the_page_lists():
    assert [board.stem for board in BOARDS] == ["broker-group", "cluster", "consumers", "spark", "topic"]
    assert all(f"`docker/grafana/{board.name}`" in RUNBOOK for board in BOARDS)


def test_promtool_accepts_every_query_of_every_board(tmp_path):
    made = []
    for board in BOARDS:
        for query in queries(board):
            for name, value in _VARIABLES.items():
                query = query.replace(name, value)
            made.append({"record": f"board:query:{len(made)}", "expr": query})
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": made}]}))
    assert f"{len(made)} rules found" in promtool("check", "rules", file)


def test_promtool_accepts_alarms_and_configuration():
    assert f"{len(rules())} rules found" in promtool("check", "rules", RULES)
    promtool("check", "config", RULES.with_name("prometheus.yml"))


def test_alarms_fire_when_they_should_and_only_then():
    promtool("test", "rules", Path(__file__).with_name("alarms.yml"))


def test_every_alarm_has_a_line_that_says_what_to_do():
    lines = re.findall(r"^\| `(Dledger\w+)` \| (warning|critical) \| (.+) \|$", RUNBOOK, re.MULTILINE)
    assert [(name, severity) for name, severity, _ in lines] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in rules()
    ]


def test_prometheus_scrapes_the_ports_of_the_compose_file():
    config = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
    targets = {one for job in config["scrape_configs"] for part in job["static_configs"] for one in part["targets"]}
    wanted = set()
    for file in (ROOT / "docker" / "config").glob("broker-*.toml"):
        text = file.read_text()
        host = re.search(r'^advertised_host = "(.+)"', text, re.MULTILINE)[1]
        wanted.add(f"{host}:{re.search(r'^http_port = (.+)', text, re.MULTILINE)[1]}")
    name_server = (ROOT / "docker" / "config" / "namesrv.toml").read_text()
    wanted.add(f"namesrv:{re.search(r'^http_port = (.+)', name_server, re.MULTILINE)[1]}")
    assert targets == wanted
