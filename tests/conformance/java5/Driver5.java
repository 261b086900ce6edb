import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Drives RocketMQ 5's Java client; see ../stock_clients.py for the lines it reads and writes.
 *
 * <pre>java Driver5 HOST:PORT[;HOST:PORT]      addresses of proxies</pre>
 */
public class Driver5 {
    static final long RETRY_PAUSE_MS = 100;
    static final Gson GSON = new Gson();
    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Map<String, Producer> PRODUCERS = new HashMap<>();
    static final Map<String, Transaction> HALVES = new ConcurrentHashMap<>();
    static final Map<String, MessageView> HELD = new ConcurrentHashMap<>();
    static final Map<String, SimpleConsumer> SIMPLE = new ConcurrentHashMap<>();
    static final Map<String, PushConsumer> PUSH = new ConcurrentHashMap<>();
    static volatile boolean streamsStop;
    static String addresses;

    public static void main(String[] arguments) throws Exception {
        addresses = arguments[0];
        // The client prints warnings of its own at its start.
        System.setOut(System.err);
        ExecutorService pool = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject wanted = JsonParser.parseString(line).getAsJsonObject();
            pool.execute(() -> answer(wanted));
        }
        Runtime.getRuntime().halt(0);
    }

    static void answer(JsonObject wanted) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("id", wanted.get("id").getAsInt());
        try {
            said.put("result", call(wanted));
        } catch (Throwable error) {
            Throwable cause = error instanceof IllegalStateException && error.getCause() != null ? error.getCause() : error;
            said.put("error", cause.toString());
        }
        say(said);
    }

    static synchronized void say(Map<String, Object> fields) {
        OUT.println(GSON.newBuilder().serializeNulls().create().toJson(fields));
    }

    static Object call(JsonObject wanted) throws Exception {
        switch (text(wanted, "call")) {
            case "send":
                return send(wanted);
            case "begin":
                return begin(wanted);
            case "commit":
                HALVES.remove(text(wanted, "message")).commit();
                return null;
            case "rollback":
                HALVES.remove(text(wanted, "message")).rollback();
                return null;
            case "recall":
                String topic = text(wanted, "topic");
                return producer(topic).recallMessage(topic, text(wanted, "handle")).getMessageId().toString();
            case "stream":
                return stream(wanted);
            case "stop_streams":
                streamsStop = true;
                return null;
            case "simple":
                return simple(wanted);
            case "receive":
                return receive(wanted);
            case "ack":
                SIMPLE.get(text(wanted, "name")).ack(HELD.get(text(wanted, "message")));
                return null;
            case "hide":
                SIMPLE.get(text(wanted, "name")).changeInvisibleDuration(
                    HELD.get(text(wanted, "message")), Duration.ofSeconds(number(wanted, "seconds", 0)));
                return null;
            case "push":
                return push(wanted);
            case "stop":
                PUSH.remove(text(wanted, "name")).close();
                return null;
            default:
                throw new IllegalArgumentException("no such call: " + text(wanted, "call"));
        }
    }

    static ClientConfiguration configuration() {
        ClientConfigurationBuilder made = ClientConfiguration.newBuilder().setEndpoints(addresses);
        made.enableSsl(System.getenv("DRIVER_TLS") != null);
        String account = System.getenv("DRIVER_ACCESS_KEY");
        if (account != null) {
            made.setCredentialProvider(new StaticSessionCredentialsProvider(account, System.getenv("DRIVER_SECRET")));
        }
        return made.build();
    }

    static Producer producer(String topic) throws ClientException {
        synchronized (PRODUCERS) {
            Producer made = PRODUCERS.get(topic);
            if (made == null) {
                made = PROVIDER.newProducerBuilder()
                    .setClientConfiguration(configuration())
                    .setTopics(topic)
                    .setTransactionChecker(Driver5::check)
                    .build();
                PRODUCERS.put(topic, made);
            }
            return made;
        }
    }

    static TransactionResolution check(MessageView message) {
        say(Map.of("checked", body(message)));
        return TransactionResolution.COMMIT;
    }

    static Message message(JsonObject wanted) {
        MessageBuilder made = PROVIDER.newMessageBuilder()
            .setTopic(text(wanted, "topic"))
            .setBody(text(wanted, "body").getBytes(StandardCharsets.UTF_8));
        if (wanted.has("tag")) {
            made.setTag(text(wanted, "tag"));
        }
        if (wanted.has("keys")) {
            made.setKeys(GSON.fromJson(wanted.get("keys"), String[].class));
        }
        if (wanted.has("group")) {
            made.setMessageGroup(text(wanted, "group"));
        }
        if (wanted.has("delay_s")) {
            made.setDeliveryTimestamp(System.currentTimeMillis() + number(wanted, "delay_s", 0) * 1000L);
        }
        if (wanted.has("properties")) {
            wanted.getAsJsonObject("properties").asMap().forEach((name, value) -> made.addProperty(name, value.getAsString()));
        }
        return made.build();
    }

    static Map<String, Object> send(JsonObject wanted) throws ClientException {
        SendReceipt sent = producer(text(wanted, "topic")).send(message(wanted));
        Map<String, Object> said = new HashMap<>();
        said.put("message_id", sent.getMessageId().toString());
        said.put("recall_handle", sent.getRecallHandle());
        return said;
    }

    static Map<String, Object> begin(JsonObject wanted) throws ClientException {
        Producer sender = producer(text(wanted, "topic"));
        Transaction transaction = sender.beginTransaction();
        String id = sender.send(message(wanted), transaction).getMessageId().toString();
        HALVES.put(id, transaction);
        return Map.of("message_id", id);
    }

    /** Sends numbered messages one after the other, each until it is acknowledged. */
    static Object stream(JsonObject wanted) throws InterruptedException {
        for (int number = 0; number < number(wanted, "count", 0) && !streamsStop; number++) {
            String body = text(wanted, "prefix") + number;
            wanted.addProperty("body", body);
            while (!streamsStop) {
                long started = System.nanoTime();
                try {
                    send(wanted);
                    say(Map.of("sent", number, "body", body, "ms", (System.nanoTime() - started) / 1e6));
                    break;
                } catch (Exception error) {
                    say(Map.of("failed", number, "error", String.valueOf(error)));
                    Thread.sleep(RETRY_PAUSE_MS);
                }
            }
            Thread.sleep(number(wanted, "pause_ms", 0));
        }
        return null;
    }

    static Map<String, FilterExpression> subscriptions(JsonObject wanted) {
        String expression = wanted.has("expression") ? text(wanted, "expression") : "*";
        FilterExpressionType type = wanted.has("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(text(wanted, "topic"), new FilterExpression(expression, type));
    }

    static Object simple(JsonObject wanted) throws ClientException {
        SIMPLE.put(text(wanted, "name"), PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(text(wanted, "group"))
            .setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(subscriptions(wanted))
            .build());
        return null;
    }

    static List<Object> receive(JsonObject wanted) throws ClientException {
        Duration invisible = Duration.ofSeconds(number(wanted, "invisible_s", 10));
        List<Object> said = new ArrayList<>();
        for (MessageView one : SIMPLE.get(text(wanted, "name")).receive(number(wanted, "max", 16), invisible)) {
            HELD.put(one.getMessageId().toString(), one);
            said.add(shown(one));
        }
        return said;
    }

    static Object push(JsonObject wanted) throws ClientException {
        String name = text(wanted, "name");
        Map<String, Integer> left = new ConcurrentHashMap<>();
        if (wanted.has("fails")) {
            wanted.getAsJsonObject("fails").asMap().forEach((body, times) -> left.put(body, times.getAsInt()));
        }
        PUSH.put(name, PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(text(wanted, "group"))
            .setSubscriptionExpressions(subscriptions(wanted))
            .setMessageListener(message -> {
                Map<String, Object> said = shown(message);
                said.put("received", name);
                say(said);
                Integer before = left.computeIfPresent(body(message), (body, times) -> times - 1);
                return before != null && before >= 0 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
        return null;
    }

    static Map<String, Object> shown(MessageView message) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("id", message.getMessageId().toString());
        said.put("topic", message.getTopic());
        said.put("body", body(message));
        said.put("tag", message.getTag().orElse(null));
        said.put("keys", new TreeSet<>(message.getKeys()));
        said.put("group", message.getMessageGroup().orElse(null));
        said.put("properties", message.getProperties());
        said.put("attempt", message.getDeliveryAttempt());
        said.put("corrupted", false);
        return said;
    }

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }

    static String text(JsonObject wanted, String name) {
        return wanted.get(name).getAsString();
    }

    static int number(JsonObject wanted, String name, int otherwise) {
        return wanted.has(name) ? wanted.get(name).getAsInt() : otherwise;
    }
}
