"""A campaign's seeds determine its runs. It continues where the last one stopped, and sums up all runs."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dledger_chaos.campaign import driver
from dledger_chaos.campaign.driver import run_campaign
from dledger_chaos.campaign.figures import figures
from dledger_chaos.campaign.swarm import ALWAYS, BESIDE, PARTITIONS, POWER_LOSSES, WORKLOAD, draw_swarm
from dledger_chaos.campaign.totals import RunFigures, Totals, load_totals, save_totals
from dledger_chaos.checkers.recovery import SETTLE_S
from dledger_chaos.cli import chaos as command_line
from dledger_chaos.faults import KINDS
from dledger_chaos.run import RunResult
from dledger_chaos.workloads.base import PROXIES
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


def test_a_seed_draws_the_same_every_time_and_the_seeds_draw_everything():
    assert draw_swarm(7) == draw_swarm(7)
    assert len({draw_swarm(seed) for seed in SEEDS}) > len(SEEDS) / 2
    swarms = [draw_swarm(seed) for seed in SEEDS]
    assert {name for swarm in swarms for name in swarm.faults} == set(KINDS) - BESIDE
    drawn = {name for swarm in swarms for name in swarm.workloads}
    assert drawn == {
        entry.name for entry in WORKLOADS.values() if entry.target == "broker" and PROXIES not in entry.needs
    }


def test_every_swarm_contains_power_losses_partitions_and_the_main_workload():
    for seed in SEEDS:
        swarm = draw_swarm(seed)
        assert set(ALWAYS) <= set(swarm.faults)
        assert set(POWER_LOSSES) & set(swarm.faults)
        assert len(set(PARTITIONS) & set(swarm.faults)) >= 2
        assert WORKLOAD in swarm.workloads


def test_paces_without_overlap_pause_longer_than_the_settling_time():
    paces = {draw_swarm(seed).pace for seed in SEEDS}
    single = [pace for pace in paces if pace.max_overlap == 1]
    assert single
    assert len(paces) > len(single)
    assert all(pace.pause_s[0] > SETTLE_S for pace in single)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """Return a list that gets the seeds of runs. No cluster is started."""
    seeds: list[int] = []

    async def run(options, say):
        del say
        seeds.append(options.seed)
        return RunResult("valid", (), options.directory, {})

    monkeypatch.setattr(driver, "run", run)
    monkeypatch.setattr(driver, "figures_of", lambda _, __: run_figures(seeds[-1]))
    return seeds


def test_a_campaign_continues_after_the_runs_in_its_file(tmp_path, asked):
    state = tmp_path / "sums" / "state.json"

    def campaign(runs: int) -> list[RunFigures]:
        return run_campaign(runs=runs, minutes=1, first=40, out=tmp_path, state=state, say=lambda _: None).runs

    campaign(2)
    assert [run.seed for run in load_totals(state).runs] == asked == [40, 41]
    assert [run.seed for run in campaign(3)] == [40, 41, 42]
    campaign(3)
    assert asked == [40, 41, 42]


def test_a_campaign_reruns_failed_seeds_and_keeps_their_earlier_results(tmp_path, asked):
    state = tmp_path / "state.json"
    save_totals(state, Totals([run_figures(1), run_figures(2, verdict="invalid", broken=["lost"]), run_figures(3)]))
    run_campaign(runs=4, minutes=1, first=1, out=tmp_path, state=state, say=lambda _: None, again=True)
    totals = load_totals(state)
    assert asked == [2, 4]
    assert [(run.seed, run.verdict) for run in totals.runs] == [(seed, "valid") for seed in (1, 2, 3, 4)]
    assert [(run.seed, run.broken) for run in totals.before] == [(2, ["lost"])]
    assert "| seed 2, before it was run again: invalid | lost: " in figures([totals])


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


def test_figures_sum_runs_of_all_campaigns_by_class():
    second = Totals([run_figures(9, verdict="invalid", broken=["lost"])])
    table = figures([Totals([run_figures(1), run_figures(2)]), second])
    rows = dict(line.strip("|").strip().split(" | ", 1) for line in table.splitlines()[2:])
    expected = {
        "runs": "3: 2 valid, 1 invalid",
        "seeds": "1 to 2, 9",
        "messages acknowledged": "3,000",
        "of these found on every node at the end": "2,700",
        "operations checked": "1,509: 1,500 ok, 9 info",
        "SIGKILL": "6: 6 kill-leader",
        "losses of power": "3: 3 power-loss-all",
        "partitions": "12: 12 partition-ring",
        "other faults of processes": "3: 3 pause-leader",
        "processes that kills and losses of power were aimed at": "15",
        "seed 9: invalid": "lost: `dledger chaos run --swarm --seed 9`",
    }
    assert rows | expected == rows
    assert "6 waits: p50 0.50 s, p99 1.25 s, longest 1.25 s" in table


def test_files_that_are_no_campaign_results_are_named_in_one_line(tmp_path):
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
