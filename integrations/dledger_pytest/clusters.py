"""Clusters of one pytest session, by their number of nodes, and the administration of their topics."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Final, Self

import pytest

from dledger_base.extras import install_command
from dledger_client import ClientError, GroupInUseError, NotFoundError, SyncAdmin
from dledger_client.testing import ClusterError, LocalCluster
from dledger_remoting.topics import dead_letter_topic, retry_topic

BROKER_MODULES: Final = ("aiohttp", "numpy", "prometheus_client", "rich")
"""Modules without which no broker starts. They belong to the extra `broker`."""


class Clusters:
    """The clusters that tests have asked for. Each is started once, and stopped at the end of the session.

    Every failure is one line of the test report, without a traceback.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._by_nodes: dict[int, LocalCluster] = {}
        self._admins: dict[LocalCluster, SyncAdmin] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def running(self, nodes: int) -> LocalCluster:
        """Return the cluster with this number of voters, started at the first call."""
        if nodes not in self._by_nodes:
            missing = [module for module in BROKER_MODULES if not _is_there(module)]
            if missing:
                pytest.fail(
                    f"dledger_cluster starts brokers, which need {', '.join(missing)}: {install_command('broker')}",
                    pytrace=False,
                )
            try:
                self._by_nodes[nodes] = self._stack.enter_context(LocalCluster(nodes=nodes))
            except ClusterError as error:
                pytest.fail(f"dledger_cluster does not start: {error}", pytrace=False)
        return self._by_nodes[nodes]

    def mend(self) -> ClusterError | None:
        """Start all killed processes again, and continue paused nodes. Returns the error of the first that failed."""
        failure: ClusterError | None = None
        for cluster in self._by_nodes.values():
            try:
                cluster.mend()
            except ClusterError as error:
                failure = failure or error
        return failure

    def create_topic(self, cluster: LocalCluster, topic: str) -> None:
        """Create a topic. Clients find it as soon as this returns."""
        try:
            self._admin(cluster).create_topic(topic)
        except ClientError as error:
            pytest.fail(f"topic {topic} was not created: {error}", pytrace=False)

    def delete_topic(self, cluster: LocalCluster, topic: str) -> None:
        """Delete a topic, and all groups whose names begin with its name, with their retries and dead letters.

        A group that still has members stays.
        """
        admin = self._admin(cluster)
        in_use: list[str] = []
        try:
            for group in admin.groups():
                if group.startswith(topic):
                    try:
                        admin.delete_group(group)
                    except GroupInUseError:
                        in_use.append(group)
            owned = (topic, retry_topic(topic), dead_letter_topic(topic))
            for name in admin.topics(include_system=True):
                if name.startswith(owned) and not any(group in name for group in in_use):
                    with suppress(NotFoundError):
                        admin.delete_topic(name)
        except ClientError as error:
            pytest.fail(f"topic {topic} was not deleted: {error}", pytrace=False)

    def _admin(self, cluster: LocalCluster) -> SyncAdmin:
        if cluster not in self._admins:
            self._admins[cluster] = self._stack.enter_context(SyncAdmin(cluster.namesrv))
        return self._admins[cluster]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
