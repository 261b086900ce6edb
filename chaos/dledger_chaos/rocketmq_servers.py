"""RocketMQ's servers as processes: the content of their configuration files, and the commands that start them.

Each server keeps all its files in a directory of its own, its home.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

Server = Literal["namesrv", "broker"]

_HEAP_OPTIONS: Final[Mapping[Server, tuple[str, ...]]] = {
    "namesrv": ("-Xms64m", "-Xmx256m"),
    "broker": ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"),
}
_MAIN_CLASSES: Final[Mapping[Server, str]] = {
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
}
_OPENED_PACKAGES: Final = ("java.nio", "java.lang", "java.util", "sun.nio.ch")
"""Packages of Java whose internals RocketMQ uses. Newer versions of Java allow that only with an option."""


def namesrv_config(home: Path, port: int) -> str:
    """Return the content of a name server's configuration file."""
    return _format_config(
        {
            "rocketmqHome": home,
            "listenPort": port,
            "kvConfigPath": home / "kvConfig.json",
            "configStorePath": home / "namesrv.properties",
        }
    )


def broker_config(
    home: Path, *, namesrv: str, group: str, advertised: str, port: int, ha_port: int, more: Mapping[str, object]
) -> str:
    """Return the configuration file of a broker that listens on 127.0.0.1 and gives clients the address `advertised`.

    Topics and groups are made when they are used, and a disk may fill up to 95 %. `more` has settings of replication.
    """
    return _format_config(
        {
            "rocketmqHome": home,
            "namesrvAddr": namesrv,
            "brokerClusterName": "DefaultCluster",
            "brokerName": group,
            "brokerIP1": advertised,
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "haListenPort": ha_port,
            "storePathRootDir": home / "store",
            "storePathCommitLog": home / "store" / "commitlog",
            "autoCreateTopicEnable": "true",
            "autoCreateSubscriptionGroup": "true",
            "diskMaxUsedSpaceRatio": 95,
            "sendMessageThreadPoolNums": 4,
            **more,
        }
    )


def server_command(java: str, jars: Path, server: Server, home: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts a server with its home's `process.conf`, and the variables to add for it."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES]
    command = [
        java,
        *_HEAP_OPTIONS[server],
        *opened,
        "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
        "-XX:+UseG1GC",
    ]
    command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-cp", f"{jars}/*"]
    return [*command, _MAIN_CLASSES[server], "-c", str(config_path(home))], {"ROCKETMQ_HOME": str(home)}


def config_path(home: Path) -> Path:
    """Return the path of a server's configuration file."""
    return home / "process.conf"


def _format_config(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())
