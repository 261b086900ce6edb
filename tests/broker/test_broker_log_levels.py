"""A broker logs from the level on that its configuration sets, for all loggers or for one of them."""

import logging
from pathlib import Path

import pytest

from dledger_broker.config import build_config
from dledger_broker.errors import ConfigError
from dledger_broker.process import Logs

MINIMAL = {"broker_group": "broker-a", "node_id": "broker-a-n0", "data_dir": "data"}


@pytest.fixture
def logging_as_before(monkeypatch):
    monkeypatch.setattr(logging, "basicConfig", lambda **_settings: None)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    loggers = [logging.getLogger(name) for name in ("", "quiet")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("logging_as_before")
def test_levels_of_the_configuration_count_and_the_default_is_info():
    Logs(build_config({**MINIMAL, "log_level": "WARNING", "log_levels": {"quiet": "ERROR"}}))
    assert logging.getLogger().level == logging.WARNING
    assert logging.getLogger("quiet.below").getEffectiveLevel() == logging.ERROR
    config = build_config(MINIMAL, Path())
    assert (config.log_level, config.log_levels) == ("INFO", {})


def test_an_invalid_level_of_one_logger_is_refused():
    with pytest.raises(ConfigError, match="each level one of DEBUG, INFO, WARNING, ERROR"):
        build_config({**MINIMAL, "log_levels": {"a": "LOUD"}})
