"""Keys of RocketMQ's `namesrv.conf` that have no counterpart here.

Which of our keys the others are names of stands with those keys, in `config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WITHOUT_EFFECT: Final = frozenset(
    {
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "configStorePath",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableShutdownGracefully",
        "kvConfigPath",
        "needWaitForService",
        "notifyMinBrokerIdChanged",
        "productEnvName",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "supportActingMaster",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "waitSecondsForService",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
"""One event loop does what threads, their queues and Netty's buffers are for, files lie below `data`, and a live node
always stands in for a leader.
"""

IMPOSSIBLE: Final[Mapping[str, str]] = {
    "clusterTest": "routes come from the brokers that register here, and from no other name server",
    "enableControllerInNamesrv": "there is no controller, a group elects its leader itself",
}
"""Keys that may only be false, and why."""
