import java.io.PrintStream;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one class: SuiteRunner CLASS RESULTS only|except METHOD...
 *
 * RESULTS gets two lines a test, each with fields between tabs: "began METHOD", then "ended METHOD OUTCOME SECONDS
 * REASON", OUTCOME being passed, failed or ignored. A test that began and did not end was cut off.
 */
public class SuiteRunner extends RunListener {
    private static final int SHOWN_CHARACTERS = 300;

    private final PrintStream results;
    private long beganNs;
    private Throwable thrown;

    private SuiteRunner(PrintStream results) {
        this.results = results;
    }

    public static void main(String[] arguments) throws Exception {
        boolean only = arguments[2].equals("only");
        Set<String> named = Set.of(java.util.Arrays.copyOfRange(arguments, 3, arguments.length));
        JUnitCore junit = new JUnitCore();
        try (PrintStream results = new PrintStream(arguments[1], "UTF-8")) {
            junit.addListener(new SuiteRunner(results));
            junit.run(Request.aClass(Class.forName(arguments[0])).filterWith(new Filter() {
                @Override
                public boolean shouldRun(Description test) {
                    return !test.isTest() || named.contains(method(test)) == only;
                }

                @Override
                public String describe() {
                    return "methods that are to run";
                }
            }));
        }
        Runtime.getRuntime().halt(0);   // clients' threads would keep the process alive
    }

    @Override
    public void testStarted(Description test) {
        System.out.println("== " + test.getDisplayName());
        results.printf("began\t%s%n", test.getMethodName());
        beganNs = System.nanoTime();
        thrown = null;
    }

    @Override
    public void testFailure(Failure failure) {
        failure.getException().printStackTrace(System.out);
        thrown = failure.getException();
        if (!failure.getDescription().isTest()) {   // of the class: its own set-up
            ended(failure.getDescription(), "failed", words(thrown));
        }
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        thrown = failure.getException();
    }

    @Override
    public void testFinished(Description test) {
        ended(test, thrown == null ? "passed" : "failed", thrown == null ? "" : words(thrown));
    }

    @Override
    public void testIgnored(Description test) {
        beganNs = System.nanoTime();
        ended(test, "ignored", "");
    }

    private void ended(Description test, String outcome, String reason) {
        double seconds = (System.nanoTime() - beganNs) / 1e9;
        String name = test.getMethodName() == null ? "(class)" : test.getMethodName();
        results.printf("ended\t%s\t%s\t%.1f\t%s%n", name, outcome, seconds, reason);
    }

    /** The method's name without the parameters of a parameterized test. */
    private static String method(Description test) {
        return test.getMethodName().replaceFirst("\\[.*", "");
    }

    private static String words(Throwable thrown) {
        String where = "";
        for (StackTraceElement at : thrown.getStackTrace()) {
            if (at.getClassName().startsWith("org.apache.rocketmq.test.")) {
                where = at.getFileName() + ":" + at.getLineNumber();
                break;
            }
        }
        String said = (thrown.getClass().getSimpleName() + ": " + thrown.getMessage()).replaceAll("\\s+", " ");
        String shown = said.length() > SHOWN_CHARACTERS ? said.substring(0, SHOWN_CHARACTERS) + "…" : said;
        return where.isEmpty() ? shown : shown + " (" + where + ")";
    }
}
