"""Access control is on by a node's configuration and by its group's log, and no missing file switches it off."""

import logging
from dataclasses import replace

import pytest
from guarded_broker import CONFIG, CREATE_USER, allow, as_root, call, make_account
from served_broker import ServedBroker, make_served_broker, send_ext

from dledger.types import Membership, ReplicaId
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import ConfigError
from dledger_broker.features.access.job import AccessJob, withheld_kinds
from dledger_broker.features.access.table import ACCESS, TURN_ON, TurnAccessOff, TurnAccessOn
from dledger_broker.kernel.members import Features
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from tests.access_keys import KEY_FILE
from tests.broker.job_runs import run_of_a_job

REFUSED = 16
SAID = {"on": {"access_control": "on"}, "log": {"access_control": "log"}, "off": {"access_control": "off"}, "file": {}}
KEYLESS = {"nothing": {}, "off, no file": {"access_control": "off"}}
CONFIGS = {name: replace(CONFIG, access_key_file=KEY_FILE, **said) for name, said in SAID.items()} | {
    name: replace(CONFIG, access_key_file=None, **said) for name, said in KEYLESS.items()
}


def broker_of(config: BrokerConfig, *commands: object) -> ServedBroker:
    memory = BrokerInMemory()
    broker = make_served_broker(config, memory)
    memory.create_topic("T1")
    for command in commands:
        memory.machine.stage_command(command, lambda _: None)
    broker.settle()
    return broker


@pytest.mark.parametrize("said", CONFIGS)
def test_access_control_of_the_group_counts_at_a_node_that_is_not_configured_for_access(said: str) -> None:
    broker = broker_of(CONFIGS[said])
    assert (broker.client().send_message("T1").code == REFUSED) == (said in ("on", "file"))
    assert broker_of(CONFIGS[said], TurnAccessOn()).client().send_message("T1").code == REFUSED
    assert broker_of(CONFIGS[said], TurnAccessOn(), TurnAccessOff()).client().send_message("T1").code in (
        {REFUSED} if said in ("on", "file") else {0}
    )


def test_mode_log_refuses_only_new_administrators_and_logs_each_client_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_of(CONFIGS["log"])
    who = make_account(broker, "app")
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert call(broker.client(), who, 310, send_ext("T1"), b"x").code == 0
            assert broker.client().send_message("T1").code == 0
        assert broker.client().call(CREATE_USER, {"username": "eve"}, b'{"password":"secret"}').code == REFUSED
        assert call(broker.client(), who, CREATE_USER, {"username": "eve"}, b'{"password":"secret"}').code == REFUSED
        allow(broker, "app", "Topic:T1", "Pub")
        counted = broker.service.access.would_refuse
        assert call(broker.client(), who, 310, send_ext("T1"), b"x").code == 0
    assert broker.service.access.would_refuse == counted == 40
    assert caplog.text.count("event=access_would_refuse") == 2, "one of the account, one of nobody"
    as_root(broker, 3005, {})


@pytest.mark.parametrize(("said", "own", "others", "turns"), [
    ("on", "on", ("on", "on"), "on"),
    ("file", "file", ("on", "file"), "on"),
    ("one lacks its file", "on", ("on", "nothing"), None),
    ("one only logs", "on", ("on", "log"), None),
    ("all say off", "off", ("off", "off, no file"), "off"),
    ("one says nothing", "off", ("off", "nothing"), None),
    ("one is on still", "off", ("off", "on"), None),
])  # fmt: skip
def test_access_control_turns_on_or_off_only_if_all_members_agree(
    said: str, own: str, others: tuple[str, ...], turns: str | None
) -> None:
    broker = broker_of(CONFIGS[own], *((TurnAccessOn(),) if own == "off" else ()))
    machine = broker.memory.machine
    is_on = own == "off"
    members = (NODE_ID, "n8", "n9")
    broker.memory.node.membership = Membership(tuple(ReplicaId(node_id, node_id) for node_id in members))
    for node_id, config in zip(members, (own, *others), strict=True):
        withheld = withheld_kinds(CONFIGS[config])
        kinds = tuple(kind for kind in machine.commands.kinds if kind not in withheld)
        machine.stage_command(Features(node_id, kinds), lambda _: None)
    broker.settle()
    AccessJob(machine, CONFIGS[own]).run(run_of_a_job(broker.memory))
    broker.settle()
    assert (machine.state.table(ACCESS).since > 0) == (is_on if turns is None else turns == "on"), said


def test_access_modes_on_and_log_need_a_key_file() -> None:
    for mode in ("on", "log"):
        with pytest.raises(ConfigError, match="access_key_file is missing"):
            replace(CONFIG, access_key_file=None, access_control=mode)
    assert TURN_ON not in withheld_kinds(CONFIG)
