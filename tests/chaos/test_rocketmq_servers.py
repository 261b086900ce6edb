"""RocketMQ's servers keep to their homes, whoever starts them."""

from pathlib import Path

from dledger_chaos.rocketmq_servers import broker_config, config_path, namesrv_config, server_command

HOME = Path("/run/n1")


def read(config: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in config.splitlines())


def test_all_files_of_a_server_lie_in_its_home() -> None:
    more = {"brokerRole": "SLAVE"}
    broker = broker_config(HOME, namesrv="h:1", group="g", advertised="127.0.0.2", port=7, ha_port=8, more=more)
    for config in (namesrv_config(HOME, 5), broker):
        paths = [Path(value) for value in read(config).values() if value.startswith("/")]
        assert len(paths) >= 3
        assert all(path.is_relative_to(HOME) for path in paths)
    for server in ("namesrv", "broker"):
        command, environment = server_command("java", Path("/jars"), server, HOME)
        assert command[-2:] == ["-c", str(config_path(HOME))]
        assert {"-Duser.home=/run/n1", "-Drocketmq.home.dir=/run/n1"} <= set(command)
        assert environment == {"ROCKETMQ_HOME": "/run/n1"}


def test_a_broker_is_told_how_it_keeps_replicas() -> None:
    more = {"brokerRole": "SLAVE", "diskMaxUsedSpaceRatio": 80}
    values = read(broker_config(HOME, namesrv="h:1", group="g", advertised="a", port=7, ha_port=8, more=more))
    assert values["brokerRole"] == "SLAVE"
    assert values["diskMaxUsedSpaceRatio"] == "80"
    assert (values["listenPort"], values["haListenPort"], values["brokerIP1"]) == ("7", "8", "a")
