"""The pytest plugin, as an application's tests use it: in sessions of pytest of their own, on real clusters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dledger_base.extras import install_command

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "testing.md"
FIRST, _, FAILURES = re.findall(r"^ *```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
"""Examples of the guide: of the fixtures, of a backend, and of a killed leader."""

INI = """
[pytest]
asyncio_mode = strict
asyncio_default_fixture_loop_scope = function
addopts = -p no:cacheprovider --strict-markers
"""

APPLICATION = """
import asyncio

import pytest
from dledger_client import SyncAdmin

TOPICS = []


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def exchange(producer, consumer, topic):
    TOPICS.append(topic)
    assert producer._core.loop is consumer._running.core.loop is asyncio.get_running_loop()
    for number in range(3):
        await producer.send(topic, b"%d" % number, ordering_key="one")
    async with asyncio.timeout(20):
        bodies = [(await anext(consumer)).body for _ in range(3)]
    assert bodies == [b"0", b"1", b"2"]


@pytest.mark.asyncio
async def test_pytest_asyncio(dledger_producer, dledger_consumer, dledger_topic):
    await exchange(dledger_producer, dledger_consumer, dledger_topic)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_longer_loop(dledger_producer, dledger_consumer, dledger_topic):
    await exchange(dledger_producer, dledger_consumer, dledger_topic)


@pytest.mark.anyio
async def test_anyio(dledger_producer, dledger_consumer, dledger_topic):
    await exchange(dledger_producer, dledger_consumer, dledger_topic)


def test_topics_and_groups_of_earlier_tests_are_gone(dledger_cluster):
    assert len(set(TOPICS)) == 3
    with SyncAdmin(dledger_cluster.namesrv) as admin:
        left = [*admin.topics(include_system=True), *admin.groups()]
    assert not [name for name in left for topic in TOPICS if topic in name]


def test_a_blocking_test_is_told_of_blocking_clients(dledger_producer):
    pass


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_trio(dledger_consumer):
    pass
"""


FAULTS = """
import pytest
from dledger_client import SyncConsumer, SyncProducer


def test_a_test_may_kill_and_pause(dledger_cluster, dledger_topic):
    killed = dledger_cluster.kill_leader()
    assert dledger_cluster.pid(killed) is None
    dledger_cluster.restart(killed)
    with SyncProducer(dledger_cluster.namesrv) as producer:
        producer.send(dledger_topic, b"after the restart")
    dledger_cluster.pause(killed)


def test_the_next_test_has_a_whole_cluster(dledger_cluster, dledger_topic):
    with SyncProducer(dledger_cluster.namesrv, timeout=5) as producer:
        producer.send(dledger_topic, b"as before")
    with SyncConsumer(dledger_cluster.namesrv, f"{dledger_topic}-readers", dledger_topic) as consumer:
        message = next(consumer)
        message.ack()
    assert message.body == b"as before"
    dledger_cluster.kill("namesrv")


def test_the_name_server_runs_again_too(dledger_cluster, dledger_topic):
    with SyncProducer(dledger_cluster.namesrv, timeout=5) as producer:
        producer.send(dledger_topic, b"as before")


@pytest.mark.dledger_nodes(3)
class TestThreeNodes:
    def test_a_failover_is_a_delay(self, dledger_cluster, dledger_topic):
        assert len(dledger_cluster.node_ids) == 3
        with SyncProducer(dledger_cluster.namesrv, timeout=30) as producer:
            producer.send(dledger_topic, b"before")
            killed = dledger_cluster.kill_leader()
            producer.send(dledger_topic, b"after")
            assert dledger_cluster.leader() != killed
"""


def test_a_session_without_our_fixtures_loads_nothing_of_ours_but_the_plugin(pytester: pytest.Pytester):
    pytester.makeini(INI)
    pytester.makepyfile(
        """
        import sys

        def test_loaded():
            ours = {name for name in sys.modules if name.startswith(("dledger", "msgspec", "aiohttp"))}
            assert ours == {"dledger_pytest", "dledger_pytest.asyncio_loops"}
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)


def test_fixtures_give_clients_on_the_loop_of_the_test_and_a_topic_that_is_gone_after_it(pytester: pytest.Pytester):
    pytester.makeini(INI)
    pytester.makepyfile(test_application=APPLICATION, test_guide=FIRST)
    assert len([line for line in FIRST.splitlines() if line]) <= 15
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=5, errors=2)
    result.stdout.fnmatch_lines(
        [
            "dledger_producer needs an asynchronous test, * use SyncProducer(dledger_cluster.namesrv, ...)",
            'dledger_consumer runs on asyncio only, and this test on trio: * anyio_backend return "asyncio"',
        ]
    )


@pytest.mark.parametrize(
    ("ini", "marker", "said"),
    [
        (
            "dledger_nodes = many",
            "",
            "ERROR: dledger_nodes of the ini file is 'many': a number of voters is expected, 1 to 9",
        ),
        ("", "@pytest.mark.dledger_nodes(0)", "*test_some: dledger_nodes is 0: a number of voters is expected, 1 to 9"),
        ("", "@pytest.mark.dledger_nodes", "*test_some: dledger_nodes takes one number, as dledger_nodes(3)"),
    ],
)
def test_a_wrong_number_of_nodes_is_one_line(pytester: pytest.Pytester, ini: str, marker: str, said: str):
    pytester.makeini(INI + ini)
    pytester.makepyfile(f"import pytest\n\n{marker}\ndef test_some(dledger_cluster):\n    pass\n")
    result = pytester.runpytest_inprocess()
    assert result.ret != 0
    (result.stderr if ini else result.stdout).fnmatch_lines([said])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


@pytest.mark.long
def test_a_test_may_break_the_cluster_and_the_next_has_a_whole_one(pytester: pytest.Pytester):
    pytester.makeini(INI)
    pytester.makepyfile(test_faults=FAULTS, test_guide=FAILURES)
    pytester.runpytest_subprocess().assert_outcomes(passed=5)


@pytest.mark.long
def test_each_worker_of_xdist_has_its_own_cluster_of_the_size_in_the_ini_file(pytester: pytest.Pytester):
    pytester.makeini(INI + "dledger_nodes = 3")
    pytester.makepyfile(
        """
        from pathlib import Path

        import pytest

        @pytest.mark.parametrize("number", range(2))
        def test_some(dledger_cluster, number, worker_id):
            assert len(dledger_cluster.node_ids) == 3
            Path(f"{worker_id}.txt").write_text(str(dledger_cluster.data_dir))
            assert dledger_cluster.leader()
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "--dist", "each")
    result.assert_outcomes(passed=4)
    clusters = {path.read_text() for path in pytester.path.glob("gw*.txt")}
    assert len(clusters) == 2
    assert not [name for name in clusters if Path(name).exists()]


WITHOUT_AIOHTTP = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
"""


def test_without_the_brokers_packages_a_cluster_names_the_command_that_installs_them(pytester: pytest.Pytester):
    pytester.makeini(INI)
    pytester.makeconftest(WITHOUT_AIOHTTP)
    pytester.makepyfile("def test_some(dledger_topic):\n    pass\n")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"dledger_cluster starts brokers, which need aiohttp: {install_command('broker')}"])


@pytest.mark.long
def test_if_pytest_asyncio_runs_all_tests_then_clients_are_on_its_loops(pytester: pytest.Pytester):
    pytester.makeini(INI.replace("= strict", "= auto"))
    pytester.makepyfile(APPLICATION)
    result = pytester.runpytest_subprocess("-o", "asyncio_default_test_loop_scope=session")
    result.assert_outcomes(passed=2, failed=1, errors=3)
    both = "has loops of both pytest-asyncio and anyio in this test: set asyncio_mode = strict, and use one marker"
    result.stdout.fnmatch_lines([f"dledger_producer {both}", f"dledger_consumer {both}"])


@pytest.mark.long
def test_anyio_alone_runs_the_fixtures(pytester: pytest.Pytester):
    pytester.makeini("[pytest]\nanyio_mode = auto\n")
    pytester.makepyfile(APPLICATION)
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=4, errors=2, warnings=2)
