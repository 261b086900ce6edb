"""A campaign's seeds draw what they do, go on where the last campaign stopped, and are summed up without loss."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dledger_chaos.campaign import driver
from dledger_chaos.campaign.driver import run_campaign, swarm_options
from dledger_chaos.campaign.figures import BEGIN, END, figures, write_figures
from dledger_chaos.campaign.swarm import ALWAYS, PARTITIONS, POWER_LOSSES, WORKLOAD, draw_swarm
from dledger_chaos.campaign.totals import RunFigures, Totals, load_totals, save_totals
from dledger_chaos.checkers.recovery import SETTLE_S
from dledger_chaos.cli import chaos as command_line
from dledger_chaos.faults import KINDS
from dledger_chaos.run import RunResult
from dledger_chaos.targets import TARGETS
from dledger_chaos.workloads.registry import WORKLOADS

SEEDS = range(300)


def run_figures(seed: int, **more) -> RunFigures:
    given = {
        "seed": seed,
        "command": f"dledger chaos run --swarm --seed {seed}",
        "verdict": "valid",
        "seconds": 360.0,
        "acknowledged": 1000,
        "read_back": 900,
        "operations": {"ok": 500, "info": 3},
        "faults": {"kill-leader": 2, "power-loss-all": 1, "partition-ring": 4, "pause-leader": 1},
        "killed": 5,
        "waits_s": [0.5, 1.25],
        "broken": [],
        "directory": "somewhere",
    }
    return RunFigures(**(given | more))


def test_a_seed_draws_the_same_every_time_and_seeds_differ():
    assert draw_swarm(7) == draw_swarm(7)
    assert len({draw_swarm(seed) for seed in SEEDS}) > len(SEEDS) / 2


def test_every_mixture_has_what_is_most_likely_to_lose_something():
    for seed in SEEDS:
        swarm = draw_swarm(seed)
        assert set(ALWAYS) <= set(swarm.faults)
        assert set(POWER_LOSSES) & set(swarm.faults)
        assert len(set(PARTITIONS) & set(swarm.faults)) >= 2
        assert WORKLOAD in swarm.workloads


def test_no_kind_and_no_workload_is_left_out_for_ever():
    swarms = [draw_swarm(seed) for seed in SEEDS]
    assert {name for swarm in swarms for name in swarm.faults} == set(KINDS)
    drawn = {name for swarm in swarms for name in swarm.workloads}
    assert drawn == {entry.name for entry in WORKLOADS.values() if entry.target == "broker"}


def test_where_faults_strike_one_at_a_time_each_counts_as_alone():
    paces = {draw_swarm(seed).pace for seed in SEEDS}
    single = [pace for pace in paces if pace.max_overlap == 1]
    assert single
    assert len(paces) > len(single)
    assert all(pace.pause_s[0] > SETTLE_S for pace in single)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Seeds that were run: no cluster is started."""
    seeds: list[int] = []

    async def run(options, say):
        del say
        seeds.append(options.seed)
        return RunResult("valid", (), options.directory, {})

    monkeypatch.setattr(driver, "run", run)
    monkeypatch.setattr(driver, "figures_of", lambda _, __: run_figures(seeds[-1]))
    return seeds


def test_a_campaign_goes_on_behind_the_runs_in_its_file(tmp_path, asked):
    state = tmp_path / "sums" / "state.json"

    def campaign(runs: int) -> list[RunFigures]:
        return run_campaign(runs=runs, minutes=1, first=40, out=tmp_path, state=state, say=lambda _: None).runs

    campaign(2)
    assert [run.seed for run in load_totals(state).runs] == asked == [40, 41]
    assert [run.seed for run in campaign(3)] == [40, 41, 42]
    campaign(3)
    assert asked == [40, 41, 42]


def test_what_was_not_valid_is_run_again_and_what_it_was_before_stays_in_the_file(tmp_path, asked):
    state = tmp_path / "state.json"
    save_totals(state, Totals([run_figures(1), run_figures(2, verdict="invalid", broken=["lost"]), run_figures(3)]))
    run_campaign(runs=4, minutes=1, first=1, out=tmp_path, state=state, say=lambda _: None, again=True)
    totals = load_totals(state)
    assert asked == [2, 4]
    assert [(run.seed, run.verdict) for run in totals.runs] == [(seed, "valid") for seed in (1, 2, 3, 4)]
    assert [(run.seed, run.broken) for run in totals.before] == [(2, ["lost"])]
    assert "| seed 2, before it was run again: invalid | lost: " in figures([totals])


def test_the_command_of_a_run_names_its_seed_and_draws_the_rest(tmp_path):
    options = swarm_options(12, 2.5, tmp_path)
    assert options.command == "dledger chaos run --swarm --minutes 2.5 --seed 12"
    assert (options.faults, options.pace) == (draw_swarm(12).faults, draw_swarm(12).pace)


def test_a_campaign_may_have_the_same_workloads_in_every_run(tmp_path, asked, monkeypatch):
    real, given = driver.swarm_options, []

    def noted(*args, **more):
        given.append(real(*args, **more))
        return given[-1]

    monkeypatch.setattr(driver, "swarm_options", noted)
    told = ["campaign", "--runs", "2", "--state", str(tmp_path / "sums"), "--workloads", "append,delays"]
    assert CliRunner().invoke(command_line, [*told, "--out", str(tmp_path)]).exit_code == 0
    assert [options.workloads for options in given] == [("append", "delays")] * 2
    assert given[0].faults == draw_swarm(1).faults
    assert given[0].command.endswith("--swarm --minutes 5 --seed 1 --workloads append,delays")
    assert asked == [1, 2]


def test_a_swarm_takes_no_orders_of_its_own(tmp_path):
    told = CliRunner().invoke(command_line, ["run", "--swarm", "--faults", "power", "--out", str(tmp_path)])
    assert told.exit_code == 2
    assert "--swarm draws what --faults would say" in told.output


def test_figures_sum_runs_of_all_campaigns_by_class():
    second = Totals([run_figures(9, verdict="invalid", broken=["lost"])])
    table = figures([Totals([run_figures(1), run_figures(2)]), second])
    rows = dict(line.strip("|").strip().split(" | ", 1) for line in table.splitlines()[2:])
    assert rows["runs"] == "3: 2 valid, 1 invalid"
    assert rows["seeds"] == "1 to 2, 9"
    assert rows["messages acknowledged"] == "3,000"
    assert rows["of these found on every node at the end"] == "2,700"
    assert rows["operations checked"] == "1,509: 1,500 ok, 9 info"
    assert rows["SIGKILL"] == "6: 6 kill-leader"
    assert rows["losses of power"] == "3: 3 power-loss-all"
    assert rows["partitions"] == "12: 12 partition-ring"
    assert rows["other faults of processes"] == "3: 3 pause-leader"
    assert rows["processes that kills and losses of power were aimed at"] == "15"
    assert rows["seed 9: invalid"] == "lost: `dledger chaos run --swarm --seed 9`"
    assert "6 waits: p50 0.50 s, p99 1.25 s, longest 1.25 s" in table


def test_figures_replace_what_stood_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Proof\n")
    for runs in ([run_figures(1)], [run_figures(1), run_figures(2)]):
        write_figures(page, [Totals(runs)])
    text = page.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert "| runs | 2: 2 valid |" in text
    assert text.startswith("# Proof\n")


def test_the_command_sums_several_files(tmp_path):
    for name, seed in (("a", 1), ("b", 101)):
        save_totals(tmp_path / name, Totals([run_figures(seed)]))
    told = CliRunner().invoke(command_line, ["figures", str(tmp_path / "a"), str(tmp_path / "b")])
    assert told.exit_code == 0, told.output
    assert "| seeds | 1, 101 |" in told.output


@pytest.mark.parametrize(
    ("command", "name", "fields"),
    [
        ("faults", "kill-leader", {"family": "process", "summary": "SIGKILL the leader"}),
        ("workloads", "append", {"target": "broker", "obstacle": None}),
        (
            "mutants",
            "trim-takes-one-more",
            {"trial": {"faults": ["kill-follower"], "workloads": ["append", "retention"], "target": "local"}},
        ),
    ],
)
def test_what_there_is_can_be_listed_for_people_and_for_programs(command, name, fields):
    told = CliRunner().invoke(command_line, [command])
    assert name in told.stdout.split()
    listed = {row["name"]: row for row in json.loads(CliRunner().invoke(command_line, [command, "-o", "json"]).stdout)}
    assert fields.items() <= listed[name].items()
    assert set(listed) <= set(told.stdout.split())


def test_the_targets_of_the_command_line_are_all_that_there_are():
    (target,) = [parameter for parameter in command_line.commands["run"].params if parameter.name == "target"]
    assert list(target.type.choices) == list(TARGETS)


def test_files_that_are_none_of_its_own_are_named_in_one_line(tmp_path):
    broken = tmp_path / "run.json"
    broken.write_text("{")
    for arguments, words in (
        (("figures", str(broken)), f"{broken} holds no sums of a campaign"),
        (("check", str(tmp_path)), f"{tmp_path} holds no finished run"),
    ):
        result = CliRunner().invoke(command_line, list(arguments))
        assert result.exit_code == 1
        assert result.output.startswith(f"Error: {words}")
        assert result.output.count("\n") == 1
