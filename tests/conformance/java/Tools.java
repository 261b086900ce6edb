// Runs commands of Apache RocketMQ's mqadmin, one after the other in one process; see ../stock_clients.py for the lines
// that it reads and writes.
//
//   java -cp 'JARS/*:CLASSES' Tools
//
//   in   {"id": 1, "call": "run", "words": ["topicList", "-n", "127.0.0.1:9876"], "seconds": 30}
//   out  {"id": 1, "result": "what it printed"}

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.tools.command.MQAdminStartup;

public class Tools {
    static final PrintStream LINES = System.out;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null;) {
            JSONObject wanted = JSON.parseObject(line);
            Map<String, Object> said = new LinkedHashMap<>();
            said.put("id", wanted.get("id"));
            try {
                String[] words = wanted.getJSONArray("words").toArray(new String[0]);
                said.put("result", run(words, wanted.getLongValue("seconds")));
            } catch (Throwable error) {
                said.put("error", error.toString());
            }
            LINES.println(JSON.toJSONString(said));
            LINES.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static String run(String[] words, long seconds) throws Exception {
        forgetCommands();
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        PrintStream captured = new PrintStream(written, true, "UTF-8");
        System.setOut(captured);
        System.setErr(captured);
        Thread command = new Thread(() -> MQAdminStartup.main0(words, null));
        command.setDaemon(true);
        command.start();
        command.join(seconds * 1000);
        if (command.isAlive()) {
            command.interrupt();
            command.join(seconds * 1000); // its last output must not mix with the next command's
            captured.println("(still runs after " + seconds + " s)");
        }
        return written.toString("UTF-8");
    }

    // Removes all commands, so that each run gets new ones: a command would reuse the client that it has shut down.
    static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers()) && List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }
}
