"""A cluster of real processes for tests, of this project and of applications.

It contains the parts that tests need beside the client itself; the client imports nothing of it. Start with
`LocalCluster`.
"""

from __future__ import annotations

from .cluster import ClusterError, LocalCluster, NodeStatus, local_cluster_fixture

__all__ = ["ClusterError", "LocalCluster", "NodeStatus", "local_cluster_fixture"]
