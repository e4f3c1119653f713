import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.plugin.PluginUtils;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Flink in one process: a MiniCluster, and a job for each line of stdin.
 *
 * <p>A line is the path of a file of SQL statements, divided by lines of a single semicolon. The
 * last one is the job. Its seconds, from reading the file to the job's end, are printed.
 * Arguments: the number of slots, and settings of the cluster as name=value.
 */
public final class FlinkJobs {
    private FlinkJobs() {}

    public static void main(String[] arguments) throws Exception {
        Configuration settings = Configuration.fromMap(Map.of(
                "rest.address", "127.0.0.1",
                "rest.bind-address", "127.0.0.1",
                "rest.bind-port", "0",
                "taskmanager.numberOfTaskSlots", arguments[0],
                "taskmanager.memory.network.min", "128mb",
                "taskmanager.memory.network.max", "128mb"));
        for (int place = 1; place < arguments.length; place++) {
            String[] pair = arguments[place].split("=", 2);
            settings.setString(pair[0], pair[1]);
        }
        FileSystem.initialize(settings, PluginUtils.createPluginManagerFromRootFolder(settings));
        MiniClusterConfiguration size = new MiniClusterConfiguration.Builder()
                .setConfiguration(settings)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(Integer.parseInt(arguments[0]))
                .build();
        try (MiniCluster cluster = new MiniCluster(size)) {
            cluster.start();
            URI address = cluster.getRestAddress().get();
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                long started = System.nanoTime();
                try {
                    run(Path.of(line), address);
                } catch (Exception error) {
                    error.printStackTrace();
                    Throwable cause = error;
                    while (cause.getCause() != null) {
                        cause = cause.getCause();
                    }
                    // last, so that it is what a reader of the log's end sees
                    System.err.println("\n".repeat(12) + cause);
                    System.exit(1);
                }
                System.out.println("{\"seconds\": " + (System.nanoTime() - started) / 1e9 + "}");
            }
        }
        System.exit(0);
    }

    private static void run(Path script, URI cluster) throws Exception {
        Configuration settings = Configuration.fromMap(Map.of(
                "execution.target", "remote",
                "rest.address", cluster.getHost(),
                "rest.port", Integer.toString(cluster.getPort())));
        String[] statements = Files.readString(script).split("\n;\n");
        for (String statement : statements) {
            if (statement.startsWith("SET ")) {
                String[] pair = statement.substring(4).split(" = ", 2);
                settings.setString(pair[0], pair[1]);
            }
        }
        // the planner depends on the runtime mode, so all settings have to be there first
        TableEnvironment tables = TableEnvironment.create(
                EnvironmentSettings.newInstance().withConfiguration(settings).build());
        for (String statement : statements) {
            if (!statement.startsWith("SET ")) {
                tables.executeSql(statement).await();
            }
        }
    }
}
