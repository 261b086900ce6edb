"""RocketMQ's servers as processes: what stands in their configuration files, and how they are started.

A server has a directory of its own, its home, in which all of its files lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

Server = Literal["namesrv", "broker"]

_HEAPS: Final[Mapping[Server, tuple[str, ...]]] = {
    "namesrv": ("-Xms64m", "-Xmx256m"),
    "broker": ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g"),
}
_MAINS: Final[Mapping[Server, str]] = {
    "namesrv": "org.apache.rocketmq.namesrv.NamesrvStartup",
    "broker": "org.apache.rocketmq.broker.BrokerStartup",
}
_OPENED: Final = ("java.nio", "java.lang", "java.util", "sun.nio.ch")
"""Packages of Java that RocketMQ reaches into, which newer ones keep closed."""


def namesrv_config(home: Path, port: int) -> str:
    """The file of a name server."""
    return _text(
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
    """The file of a broker that listens on 127.0.0.1 and tells clients that it is at `advertised`.

    Topics and groups are made when they are used, and a disk may fill up to 95 %. `more` says how it keeps replicas.
    """
    return _text(
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
    """The command that starts a server with its home's `process.conf`, and what its environment needs besides."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    command = [java, *_HEAPS[server], *opened, "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "-XX:+UseG1GC"]
    command += [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-cp", f"{jars}/*"]
    return [*command, _MAINS[server], "-c", str(config_path(home))], {"ROCKETMQ_HOME": str(home)}


def config_path(home: Path) -> Path:
    """Where a server's configuration file is."""
    return home / "process.conf"


def _text(values: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())
