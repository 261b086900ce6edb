"""The page for Celery says what is true: its example runs, and its tables are those of the code."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from celery.contrib.testing.worker import start_worker
from kombu import Connection, pools
from kombu.transport import TRANSPORT_ALIASES

import dledger_celery
from dledger_celery.names import Names
from dledger_celery.settings import Options

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guides/celery.md").read_text("utf-8")


@pytest.fixture
def logging_as_before():
    """Undo what a worker in this process does to the root logger."""
    level, handlers = logging.root.level, logging.root.handlers[:]
    yield
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers


def test_the_first_example_runs(cluster, tmp_path, logging_as_before):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(example.splitlines()) <= 15
    scope = {"__name__": "tasks"}
    exec(example.replace("127.0.0.1:9876", cluster.namesrv).replace("/tmp", str(tmp_path)), scope)
    app, add = scope["app"], scope["add"]
    with start_worker(app, perform_ping_check=False, shutdown_timeout=30):
        assert add.delay(2, 3).get(timeout=30) == 5
    pools.reset()


@pytest.mark.long
def test_the_example_program_runs(cluster):
    done = subprocess.run(
        [sys.executable, ROOT / "examples/celery_tasks.py", cluster.namesrv],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.stdout.splitlines() == [
        "now: 5",
        "a second later: 7",
        "the worker says: [{'example@here': {'ok': 'pong'}}]",
    ]


def test_the_table_of_options_is_that_of_the_code():
    table = PAGE.split("| option | default | |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`.+?) \| (.*?) \|", table, re.MULTILINE)
    assert [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)] == list(Options.__struct_fields__)
    defaults = dict(rows)
    assert defaults["`visibility_timeout`"] == f"{Options().visibility_timeout:g} s"
    assert defaults["`longest_delay`"] == f"{Options().longest_delay:,.0f} s"
    assert defaults["`timeout`"] == f"{Options().timeout:g} s"
    assert defaults["`topic_queues`"] == str(Options().topic_queues)


def test_the_table_of_names_is_that_of_the_code():
    names = Names()
    assert names.topic("video.high") == "video%2ehigh"
    assert names.exchange("celery.pidbox") == "celery%2epidbox%X"
    assert names.topic("celery", 7) == "celery%P7"
    assert Names("shop").topic("celery") == "shop%-celery"
    for name in ("video%2ehigh", "celery%2epidbox%X", "celery%P7", "`shop%-`"):
        assert name in PAGE


def test_the_errors_before_the_import_are_those_of_the_page(monkeypatch):
    rows = re.findall(r"^\| `(\w+Error): (.+?)` \|", PAGE, re.MULTILINE)
    for scheme in ("dledger", "dledgers"):
        monkeypatch.delitem(TRANSPORT_ALIASES, scheme)  # as before the import
    monkeypatch.setattr("kombu.transport._transport_cache", {})
    with pytest.raises(KeyError) as unknown:
        _ = Connection("dledger://one:1,two:2/").transport
    assert str(unknown.value) == dict(rows)["KeyError"]
    with pytest.raises(AttributeError) as misspelt:
        _ = Connection("one:1", transport="dledger_celery:Tranport").transport
    assert str(misspelt.value).startswith(dict(rows)["AttributeError"].rstrip("…"))
    with pytest.raises(ModuleNotFoundError) as absent:
        _ = Connection("one:1", transport="dledger_celeri:Transport").transport
    assert str(absent.value) == dict(rows)["ModuleNotFoundError"].replace("dledger_celery", "dledger_celeri")
    assert Connection("one:1", transport="dledger_celery:Transport").transport_cls == "dledger_celery:Transport"
    assert dledger_celery.Transport.driver_type == "dledger"
