// Drives Apache RocketMQ's Java client; see ../stock_clients.py for the lines it reads and writes.
//
//   java -cp 'JARS/*:CLASSES' Driver HOST:PORT      address of the name server

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.trace.TraceView;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

public class Driver {
    static final long RETRY_PAUSE_MS = 100;
    static String nameServer;
    static DefaultMQProducer producer;
    static DefaultMQProducer tracer;
    static TransactionMQProducer transactions;
    static final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    static volatile boolean streamsStop;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        ExecutorService calls = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null;) {
            JSONObject wanted = JSON.parseObject(line);
            calls.submit(() -> answer(wanted));
        }
        Runtime.getRuntime().halt(0);
    }

    // Returns the hook that signs for the account in the environment, or null without an account.
    static RPCHook signing() {
        String account = System.getenv("DRIVER_ACCESS_KEY");
        if (account == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(account, System.getenv("DRIVER_SECRET")));
    }

    static void answer(JSONObject wanted) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("id", wanted.get("id"));
        try {
            said.put("result", call(wanted));
        } catch (Throwable error) {
            said.put("error", error.getCause() == null ? error.toString() : error + ": " + error.getCause());
        }
        say(said);
    }

    static synchronized void say(Map<String, Object> fields) {
        System.out.println(JSON.toJSONString(fields, SerializerFeature.WriteMapNullValue));
        System.out.flush();
    }

    static Object call(JSONObject wanted) throws Exception {
        String topic = wanted.getString("topic");
        switch (wanted.getString("call")) {
            case "send":
                return shown((wanted.getBooleanValue("trace") ? traced() : ready()).send(message(wanted)));
            case "view_trace":
                return traces(wanted.getString("message_id"));
            case "bound_tries": // 5.x only: a send may take longer than one try
                ready().setSendMsgTimeout(wanted.getIntValue("send_ms"));
                ready().getClass().getMethod("setSendMsgMaxTimeoutPerRequest", int.class)
                    .invoke(ready(), wanted.getIntValue("try_ms"));
                return null;
            case "send_within":
                DefaultMQProducer within = new DefaultMQProducer("java-producers");
                patient(within);
                within.setInstanceName(wanted.getString("namespace"));
                within.setNamespace(wanted.getString("namespace"));
                within.start();
                try {
                    return shown(within.send(message(wanted)));
                } finally {
                    within.shutdown();
                }
            case "send_whole": // of any size, uncompressed, so that the broker judges the size
                DefaultMQProducer whole = new DefaultMQProducer("java-whole");
                patient(whole);
                whole.setInstanceName("whole");
                whole.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
                whole.setMaxMessageSize(Integer.MAX_VALUE);
                whole.setSendMsgTimeout(30_000);
                whole.start();
                try {
                    return shown(whole.send(message(wanted)));
                } finally {
                    whole.shutdown();
                }
            case "send_async":
                return shown(sendAsync(message(wanted)));
            case "request":
                CompletableFuture<Message> answered = new CompletableFuture<>();
                ready().request(message(wanted), new RequestCallback() {
                    @Override
                    public void onSuccess(Message reply) {
                        if (reply != null) { // 5.3.3 also calls once the request is stored
                            answered.complete(reply);
                        }
                    }

                    @Override
                    public void onException(Throwable error) {
                        answered.completeExceptionally(error);
                    }
                }, wanted.getLongValue("timeout_ms"));
                return text(answered.get());
            case "send_oneway":
                ready().sendOneway(message(wanted));
                return null;
            case "send_orderly":
                return shown(ready().send(
                    message(wanted), (queues, m, shard) -> queues.get((Integer) shard % queues.size()), wanted.getInteger("shard")));
            case "send_batch":
                List<Message> batch = new ArrayList<>();
                for (Object body : wanted.getJSONArray("bodies")) {
                    batch.add(new Message(topic, bytes((String) body)));
                }
                return shown(ready().send(batch));
            case "transaction":
                return shown(readyForTransactions(wanted.getString("group")).sendMessageInTransaction(message(wanted), null));
            case "stream":
                return stream(wanted);
            case "stop_streams":
                streamsStop = true;
                return null;
            case "push":
                return push(wanted);
            case "close_push":
                consumers.remove(wanted.getString("name")).shutdown();
                return null;
            case "lite_pull":
                return litePull(wanted.getString("group"), topic, wanted.getIntValue("count"));
            case "view":
                return text(ready().viewMessage(topic, wanted.getString("message_id")));
            case "query":
                List<String> found = new ArrayList<>();
                for (MessageExt one : ready().queryMessage(
                    topic, wanted.getString("key"), 32, 0, System.currentTimeMillis() + 60_000).getMessageList()) {
                    found.add(text(one));
                }
                return found;
            case "offsets":
                List<List<Long>> ranges = new ArrayList<>();
                for (MessageQueue queue : ready().fetchPublishMessageQueues(topic)) {
                    ranges.add(Arrays.asList(
                        producer.minOffset(queue), producer.maxOffset(queue), producer.searchOffset(queue, 0)));
                }
                return ranges;
            case "send_for_recall":
                Message later = message(wanted);
                org.apache.rocketmq.common.message.MessageAccessor.putProperty(
                    later, "TIMER_DELAY_MS", wanted.getString("delay_ms"));
                return reflected(ready().send(later), "getRecallHandle");
            case "recall":
                return reflected(ready(), "recallMessage", topic, wanted.getString("handle"));
            default:
                throw new IllegalArgumentException("no such call");
        }
    }

    // Returns the result of a method with text parameters that the 4.x line does not have.
    static Object reflected(Object object, String name, Object... texts) throws Exception {
        Class<?>[] types = new Class<?>[texts.length];
        Arrays.fill(types, String.class);
        try {
            return object.getClass().getMethod(name, types).invoke(object, texts);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    static synchronized DefaultMQProducer ready() throws Exception {
        if (producer == null) {
            DefaultMQProducer made = new DefaultMQProducer("java-producers", signing());
            patient(made);
            made.start();
            warmUp(made);
            producer = made;
        }
        return producer;
    }

    // Raises the time limit of 3 s for a name server's answer during a start, too short on a busy machine.
    static void patient(ClientConfig made) {
        made.setNamesrvAddr(nameServer);
        made.setMqClientApiTimeout(15_000);
    }

    // Loads classes, which takes longer on a busy machine than the time limit of a first send.
    static void warmUp(DefaultMQProducer made) {
        try {
            made.fetchPublishMessageQueues("TBW102");
        } catch (Exception error) {
            // The sends will report the error.
        }
    }

    static synchronized DefaultMQProducer traced() throws Exception {
        if (tracer == null) {
            DefaultMQProducer made = new DefaultMQProducer("java-tracers", null, true, null);
            patient(made);
            made.start();
            tracer = made;
        }
        return tracer;
    }

    // Returns the traces as `mqadmin queryMsgTraceById` reads them, each with its type, group and outcome.
    static List<List<String>> traces(String messageId) throws Exception {
        List<List<String>> found = new ArrayList<>();
        for (MessageExt one : ready().queryMessage("RMQ_SYS_TRACE_TOPIC", messageId, 64, 0, Long.MAX_VALUE).getMessageList()) {
            for (TraceView view : TraceView.decodeFromTraceTransData(messageId, one)) {
                found.add(Arrays.asList(view.getMsgType(), view.getGroupName(), view.getStatus()));
            }
        }
        return found;
    }

    static synchronized TransactionMQProducer readyForTransactions(String group) throws Exception {
        if (transactions == null) {
            TransactionMQProducer made = new TransactionMQProducer(group);
            patient(made);
            made.setTransactionListener(new Ends());
            made.start();
            transactions = made;
        }
        return transactions;
    }

    // Ends a transaction as its body says: commit, rollback, unknown-commit or unknown-rollback.
    static class Ends implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return text(message).startsWith("unknown-") ? LocalTransactionState.UNKNOW : outcome(message);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("checked", text(message));
            say(fields);
            return outcome(message);
        }

        static LocalTransactionState outcome(Message message) {
            return text(message).contains("commit")
                ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    static Message message(JSONObject wanted) {
        Message made = new Message(
            wanted.getString("topic"), wanted.getString("tag"), wanted.getString("keys"), bytes(wanted.getString("body")));
        if (wanted.containsKey("level")) {
            made.setDelayTimeLevel(wanted.getIntValue("level"));
        }
        if (wanted.containsKey("properties")) {
            JSONObject properties = wanted.getJSONObject("properties");
            for (String name : properties.keySet()) {
                MessageAccessor.putProperty(made, name, properties.getString(name));
            }
        }
        return made;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static Map<String, Object> shown(SendResult sent) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("status", sent.getSendStatus().toString());
        fields.put("message_id", sent.getMsgId());
        fields.put("offset_message_id", sent.getOffsetMsgId());
        fields.put("broker_group", sent.getMessageQueue().getBrokerName());
        fields.put("queue_id", sent.getMessageQueue().getQueueId());
        fields.put("queue_offset", sent.getQueueOffset());
        return fields;
    }

    static SendResult sendAsync(Message made) throws Exception {
        CompletableFuture<SendResult> result = new CompletableFuture<>();
        ready().send(made, new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        });
        return result.get();
    }

    // Sends numbered messages one after the other, each until it is acknowledged.
    static Object stream(JSONObject wanted) throws Exception {
        if (wanted.containsKey("per_request_ms")) { // the 4.x line has no such limit
            ready().getClass().getMethod("setSendMsgMaxTimeoutPerRequest", int.class)
                .invoke(ready(), wanted.getIntValue("per_request_ms"));
        }
        int count = wanted.getIntValue("count");
        for (int number = 0; number < count; number++) {
            String body = wanted.getString("prefix") + number;
            while (true) {
                long started = System.nanoTime();
                Map<String, Object> fields = new LinkedHashMap<>();
                try {
                    Message made = new Message(wanted.getString("topic"), bytes(body));
                    SendResult sent = sendOfStream(wanted, made, body);
                    fields.put("sent", number);
                    fields.put("body", body);
                    fields.put("broker_group", sent.getMessageQueue().getBrokerName());
                } catch (Exception error) {
                    fields.put("failed", number);
                    fields.put("error", error.toString());
                }
                fields.put("ms", (System.nanoTime() - started) / 1e6);
                say(fields);
                if (streamsStop) {
                    return number + 1;
                }
                if (fields.containsKey("sent")) {
                    break;
                }
                Thread.sleep(RETRY_PAUSE_MS);
            }
            Thread.sleep(wanted.getLongValue("pause_ms"));
        }
        return count;
    }

    // In a keyed stream the body of a message is its key, by which the client chooses the queue.
    static SendResult sendOfStream(JSONObject wanted, Message made, String body) throws Exception {
        if (wanted.getBooleanValue("keyed")) {
            return ready().send(made, new SelectMessageQueueByHash(), body);
        }
        return wanted.getBooleanValue("asynchronous") ? sendAsync(made) : ready().send(made);
    }

    // Starts a push consumer that reports its messages, and fails for a body as often as `fails` says.
    static Object push(JSONObject wanted) throws Exception {
        String name = wanted.getString("name");
        DefaultMQPushConsumer made =
            new DefaultMQPushConsumer(
                null, wanted.getString("group"), signing(), new AllocateMessageQueueAveragely(),
                wanted.getBooleanValue("trace"), null);
        patient(made);
        made.setInstanceName(name);
        if (wanted.containsKey("namespace")) {
            made.setNamespace(wanted.getString("namespace"));
        }
        made.setConsumeFromWhere(wanted.getBooleanValue("from_last")
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (wanted.getBooleanValue("assigned")) { // by brokers, which the 4.x line does not support
            made.getClass().getMethod("setClientRebalance", boolean.class).invoke(made, false);
        }
        if (wanted.getBooleanValue("broadcast")) {
            made.setMessageModel(made.getMessageModel().valueOf("BROADCASTING")); // in another package in 4.x
        }
        if (wanted.containsKey("sql")) {
            made.subscribe(wanted.getString("topic"), MessageSelector.bySql(wanted.getString("sql")));
        } else {
            made.subscribe(wanted.getString("topic"), wanted.containsKey("tag") ? wanted.getString("tag") : "*");
        }
        Map<String, Integer> left = new ConcurrentHashMap<>();
        if (wanted.containsKey("fails")) {
            JSONObject fails = wanted.getJSONObject("fails");
            fails.keySet().forEach(body -> left.put(body, fails.getIntValue(body)));
        }
        if (wanted.getBooleanValue("orderly")) {
            made.registerMessageListener((MessageListenerOrderly) (messages, context) -> received(name, messages, left)
                ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else if (wanted.containsKey("replies")) {
            made.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                replied(messages, wanted.getString("replies"))
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        } else {
            made.registerMessageListener((MessageListenerConcurrently) (messages, context) -> received(name, messages, left)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        made.start();
        consumers.put(name, made);
        return null;
    }

    // Replies to each message with a prefix and the message's own text. Returns false if that failed.
    static boolean replied(List<MessageExt> messages, String before) {
        try {
            for (MessageExt one : messages) {
                ready().send(MessageUtil.createReplyMessage(one, bytes(before + text(one))));
            }
            return true;
        } catch (Exception error) {
            System.err.println("no reply: " + error);
            return false;
        }
    }

    // Reports received messages. Returns false if the listener must fail.
    static boolean received(String name, List<MessageExt> messages, Map<String, Integer> left) {
        boolean handled = true;
        for (MessageExt one : messages) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("received", name);
            fields.put("topic", one.getTopic());
            fields.put("body", text(one));
            fields.put("tag", one.getTags());
            fields.put("keys", one.getKeys());
            fields.put("queue_id", one.getQueueId());
            fields.put("queue_offset", one.getQueueOffset());
            fields.put("reconsume_times", one.getReconsumeTimes());
            say(fields);
            handled &= left.merge(text(one), -1, Integer::sum) < 0;
        }
        return handled;
    }

    // Returns the bodies that a lite pull consumer reads until it has `count` messages, in the order of the polls.
    static Object litePull(String group, String topic, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        patient(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<String> bodies = new ArrayList<>();
        try {
            while (bodies.size() < count) {
                for (MessageExt one : consumer.poll(1000)) {
                    bodies.add(text(one));
                }
            }
            consumer.commitSync();
        } finally {
            consumer.shutdown();
        }
        return bodies;
    }
}
