"""Keys of RocketMQ's `namesrv.conf` that this name server has no key for.

All other keys of that file are aliases of keys in the module `config`.
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
"""Keys without an effect here.

There are no thread pools, request queues or Netty buffers, because one event loop handles all requests. The key `data`
replaces all paths. A live node always stands in for a missing leader, so `supportActingMaster` has no effect.
"""

IMPOSSIBLE: Final[Mapping[str, str]] = {
    "clusterTest": "routes come from the brokers that register here, and from no other name server",
    "enableControllerInNamesrv": "there is no controller, a group elects its leader itself",
}
"""Keys that may only be false, with the reason."""
