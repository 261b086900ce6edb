"""One cluster for all tests of the HTTP front that need a real one."""

from dledger_client.testing import local_cluster_fixture

cluster = local_cluster_fixture(scope="package", nodes=1)
cluster_of_three = local_cluster_fixture(scope="module")
