package org.apache.rocketmq.broker;

import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Stand-in for RocketMQ's class: a broker group that runs elsewhere, asked through RocketMQ's own admin client.
 *
 * It lies before RocketMQ's jars on the class path. It has the methods that the suite calls, and no others. The
 * settings choose between implementations inside RocketMQ's broker; here they have no effect.
 */
public class BrokerController {
    private static final long TIME_LIMIT_MS = 10_000;
    private static DefaultMQAdminExt admin;
    private static int taken;

    private final BrokerConfig settings = new BrokerConfig();

    private BrokerController(String cluster, String name) {
        settings.setBrokerClusterName(cluster);
        settings.setBrokerName(name);
    }

    /** Takes the next broker group that the name server knows, in the order of their names. */
    public static synchronized BrokerController next(String namesrv) {
        return ask(() -> {
            if (admin == null) {
                admin = new DefaultMQAdminExt(TIME_LIMIT_MS);
                admin.setInstanceName("stand-in-" + ProcessHandle.current().pid());
                admin.setNamesrvAddr(namesrv);
                admin.start();
            }
            ClusterInfo known = admin.examineBrokerClusterInfo();
            Map.Entry<String, java.util.Set<String>> cluster = known.getClusterAddrTable().entrySet().iterator().next();
            String[] names = new TreeSet<>(cluster.getValue()).toArray(new String[0]);
            return new BrokerController(cluster.getKey(), names[taken++]);
        });
    }

    public BrokerConfig getBrokerConfig() {
        return settings;
    }

    public String getBrokerAddr() {
        String name = settings.getBrokerName();
        return ask(() -> admin.examineBrokerClusterInfo().getBrokerAddrTable().get(name).selectBrokerAddr());
    }

    public Store getMessageStore() {
        return new Store();
    }

    public Offsets getConsumerOffsetManager() {
        return new Offsets();
    }

    public Topics getTopicConfigManager() {
        return new Topics();
    }

    public Groups getSubscriptionGroupManager() {
        return new Groups();
    }

    public Outer getBrokerOuterAPI() {
        return new Outer();
    }

    public void registerBrokerAll(boolean checkOrder, boolean oneway, boolean forced) {
    }

    public void shutdown() {
    }

    /** Lowest and highest offsets. Views follow commits at once, so nothing is ever behind. */
    public class Store {
        public long getMinOffsetInQueue(String topic, int queue) {
            TopicOffset found = find(topic, queue);
            return found == null ? -1 : found.getMinOffset();
        }

        public long getMaxOffsetInQueue(String topic, int queue) {
            TopicOffset found = find(topic, queue);
            return found == null ? 0 : found.getMaxOffset();
        }

        public long dispatchBehindBytes() {
            return 0;
        }

        public void destroy() {
        }

        private TopicOffset find(String topic, int queue) {
            MessageQueue wanted = new MessageQueue(topic, settings.getBrokerName(), queue);
            return ask(() -> admin.examineTopicStats(getBrokerAddr(), topic).getOffsetTable().get(wanted));
        }
    }

    /** Committed and pulled offsets of groups. */
    public class Offsets {
        public long queryOffset(String group, String topic, int queue) {
            OffsetWrapper found = find(group, topic, queue);
            return found == null ? -1 : found.getConsumerOffset();
        }

        public long queryPullOffset(String group, String topic, int queue) {
            OffsetWrapper found = find(group, topic, queue);
            return found == null ? -1 : found.getPullOffset();
        }

        private OffsetWrapper find(String group, String topic, int queue) {
            MessageQueue wanted = new MessageQueue(topic, settings.getBrokerName(), queue);
            return ask(() -> admin.examineConsumeStats(getBrokerAddr(), group, topic, TIME_LIMIT_MS)
                .getOffsetTable().get(wanted));
        }
    }

    /** Settings of topics. */
    public class Topics {
        public Map<String, TopicConfig> getTopicConfigTable() {
            return ask(() -> admin.getAllTopicConfig(getBrokerAddr(), TIME_LIMIT_MS).getTopicConfigTable());
        }

        public void updateTopicConfig(TopicConfig topic) {
            ask(() -> {
                admin.createAndUpdateTopicConfig(getBrokerAddr(), topic);
                return null;
            });
        }
    }

    /** Settings of groups. A group without any gets those that RocketMQ's broker makes up for it. */
    public class Groups {
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            SubscriptionGroupConfig made = new SubscriptionGroupConfig();
            made.setGroupName(group);
            return made;
        }

        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
            ask(() -> {
                admin.createAndUpdateSubscriptionGroupConfig(getBrokerAddr(), group);
                return null;
            });
        }
    }

    /** Stand-in for the broker's own client of name servers. */
    public static class Outer {
        public void refreshMetadata() {
        }
    }

    private static <T> T ask(Callable<T> question) {
        try {
            return question.call();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
