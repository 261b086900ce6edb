package org.apache.rocketmq.namesrv;

import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** Stand-in for RocketMQ's class: a name server that runs elsewhere on this machine. Its settings have no effect. */
public class NamesrvController {
    private final NamesrvConfig settings = new NamesrvConfig();
    private final NettyServerConfig server = new NettyServerConfig();

    public NamesrvController(int port) {
        server.setListenPort(port);
    }

    public NettyServerConfig getNettyServerConfig() {
        return server;
    }

    public NamesrvConfig getNamesrvConfig() {
        return settings;
    }

    public void shutdown() {
    }
}
