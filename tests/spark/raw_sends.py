"""Sends that our client never makes: a body marked as compressed that is not, or an arbitrary time of birth."""

from __future__ import annotations

from dledger_spark.options import read_options
from dledger_spark.plans import Cluster

_SEND = 310


def send_raw(
    namesrv: str, topic: str, body: bytes, *, sys_flag: int = 0, born_ms: int = 1, properties: str = ""
) -> None:
    """Send to queue 0 of the topic on `broker-a`."""
    ext = {"a": "raw", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(sys_flag), "g": str(born_ms), "h": "0"}
    cluster = Cluster(read_options({"namesrv": namesrv, "subscribe": topic}, "batch"))
    cluster.ask("broker-a", _SEND, [{**ext, "i": properties, "j": "0", "k": "false", "m": "false"}], body)
    cluster.close()
