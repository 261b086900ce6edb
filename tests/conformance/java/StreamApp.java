import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.function.Consumer;
import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * An application on Spring Cloud Stream's binder for RocketMQ: a function that consumes, and a bridge that sends. The
 * bindings `out-0` and `take-in-0` are configuration. It prints "received" once every message has come, and ends.
 */
@Configuration
@EnableAutoConfiguration   // no scan for components: this class is in no package, so a scan would read all jars
public class StreamApp {
    private static final Set<String> SENT = Set.of("one", "two", "three");
    private static final Set<String> RECEIVED = new ConcurrentSkipListSet<>();
    private static final Duration TIME_LIMIT = Duration.ofSeconds(90);

    public static void main(String[] arguments) {
        SpringApplication.run(StreamApp.class, arguments);
        System.exit(0);
    }

    @Bean
    public Consumer<String> take() {
        return RECEIVED::add;
    }

    @Bean
    CommandLineRunner sendAndWait(StreamBridge bridge) {
        return arguments -> {
            for (String body : SENT) {
                if (!bridge.send("out-0", body)) {
                    throw new IllegalStateException(body + " was not sent");
                }
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
