"""Programs that import public names from the modules of earlier versions find them there."""

import importlib
import subprocess
import sys

import pytest

import dledger_client

EARLIER = {
    "accounts": ["AccessRule", "AccountAdmin", "AccountInfo"],
    "admin": ["Admin"],
    "consumer": ["PushConsumer"],
    "errors": ["ClientError", "SendError"],
    "flow": ["FlowReason"],
    "groups": ["GroupMember", "QueueReader", "QueueStatus"],
    "handling": ["Handler"],
    "interception": ["Interceptor"],
    "messages": ["Codec", "Message", "MessageQueue", "ReceivedMessage", "Settlement"],
    "offers": ["Priority"],
    "offsets": ["StartFrom"],
    "orderly": ["OrderlyConsumer"],
    "producer": ["Producer"],
    "pull": ["PullConsumer"],
    "rebalance": ["Strategy", "allocate_average", "allocate_consistent_hash"],
    "replies": ["Reply"],
    "results": ["SendResult"],
    "routes": ["TopicRoute"],
    "simple": ["SimpleConsumer"],
    "stalls": ["QueueStall"],
    "subscriptions": ["ClassFilter", "Filter", "Sql"],
    "sync": ["SyncConsumer"],
    "sync_admin": ["SyncAdmin"],
    "sync_producer": ["SyncProducer"],
    "sync_pull": ["SyncPullConsumer"],
    "sync_simple": ["SyncSimpleConsumer"],
    "sync_transactions": ["SyncTransactionProducer"],
    "tls": ["Tls"],
    "topic_statistics": ["QueueRange", "TopicStatistics"],
    "transactions": ["Decision", "OpenTransaction", "TransactionProducer"],
}


@pytest.mark.parametrize("module", EARLIER)
def test_a_public_name_is_found_at_its_earlier_path(module):
    found = importlib.import_module(f"dledger_client.{module}")
    assert [name for name in EARLIER[module] if getattr(found, name) is not getattr(dledger_client, name)] == []


def test_an_earlier_path_is_the_same_module_and_not_a_second_one():
    program = (
        "import dledger_client.surroundings, dledger_client.cluster.surroundings as present;"
        "assert dledger_client.surroundings is present;"
        "from dledger_client.offsets import StartFrom"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
