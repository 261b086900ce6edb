import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.Environment;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * An application on Apache's Spring Boot starter: sends through its template, and listens. Everything about the service
 * is configuration (`--rocketmq.name-server=...`). It prints "received" once every message has come, and ends.
 */
@Configuration
@EnableAutoConfiguration   // no scan for components: this class is in no package, so a scan would read all jars
public class SpringApp {
    private static final Set<String> SENT = Set.of("one", "two", "three");
    private static final Set<String> RECEIVED = new ConcurrentSkipListSet<>();
    private static final Duration TIME_LIMIT = Duration.ofSeconds(90);

    public static void main(String[] arguments) {
        SpringApplication.run(SpringApp.class, arguments);
        System.exit(0);
    }

    /** The listener without TLS. Only the annotation of a listener can turn TLS on. */
    @Component
    @ConditionalOnProperty(name = "app.tls", havingValue = "false")
    @RocketMQMessageListener(topic = "${app.topic}", consumerGroup = "${app.group}")
    public static class Listener implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            RECEIVED.add(body);
        }
    }

    /** The same over TLS. */
    @Component
    @ConditionalOnProperty(name = "app.tls", havingValue = "true")
    @RocketMQMessageListener(topic = "${app.topic}", consumerGroup = "${app.group}", tlsEnable = "true")
    public static class SecuredListener extends Listener {
    }

    @Bean
    CommandLineRunner sendAndWait(RocketMQTemplate template, Environment environment) {
        return arguments -> {
            String topic = environment.getRequiredProperty("app.topic");
            for (String body : SENT) {
                template.syncSend(topic + ":tag", MessageBuilder.withPayload(body).build());
            }
            long end = System.nanoTime() + TIME_LIMIT.toNanos();
            while (!RECEIVED.containsAll(SENT)) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("received only " + new TreeSet<>(RECEIVED));
                }
                Thread.sleep(50);
            }
            System.out.println("received " + new TreeSet<>(RECEIVED));
        };
    }
}
