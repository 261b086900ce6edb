"""A cluster without access control, for all modules that break nothing."""

from dledger_client.testing import local_cluster_fixture

cluster = local_cluster_fixture(scope="session", nodes=1)
