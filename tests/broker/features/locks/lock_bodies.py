"""Bodies of requests about queue locks."""

import json


def lock_body(client_id: str, *queues: tuple[str, int], group: str = "CG", broker_group: str = "broker-a") -> bytes:
    named = [{"topic": topic, "brokerName": broker_group, "queueId": queue_id} for topic, queue_id in queues]
    return json.dumps({"consumerGroup": group, "clientId": client_id, "onlyThisBroker": False, "mqSet": named}).encode()
