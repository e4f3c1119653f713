package eo.pipeline;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Ranges of Kafka as Spark's own source reads them, by the options that are not ours.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class KafkaRanges {
    /** How the names of our own options begin. */
    static final String PREFIX = "eo.";

    /** Columns of a record, as Spark's Kafka source gives them. */
    static final int KEY = 0;
    static final int VALUE = 1;
    static final int TOPIC = 2;
    static final int PARTITION = 3;
    static final int OFFSET = 4;
    static final int TIMESTAMP = 5;
    static final int TIMESTAMP_TYPE = 6;
    static final int HEADERS = 7;

    private KafkaRanges() {
    }

    static Batch batch(CaseInsensitiveStringMap options) {
        try {
            Class found = DataSource.lookupDataSource("kafka", SQLConf.get());
            Object made = found.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
            Table table = ((TableProvider) made).getTable(null, new Transform[0], kafkas(options));
            return ((SupportsRead) table).newScanBuilder(options).build().toBatch();
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException("this Spark's Kafka source cannot be used", error);
        }
    }

    private static Map kafkas(CaseInsensitiveStringMap options) {
        Map own = new HashMap();
        Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry each = (Map.Entry) all.next();
            if (!((String) each.getKey()).startsWith(PREFIX)) {
                own.put(each.getKey(), each.getValue());
            }
        }
        return own;
    }

    /** Options by which records have their headers, too, in whatever case they said it before. */
    static CaseInsensitiveStringMap withHeaders(CaseInsensitiveStringMap options) {
        Map others = new TreeMap(String.CASE_INSENSITIVE_ORDER);
        others.putAll(options.asCaseSensitiveMap());
        others.put("includeHeaders", "true");
        return new CaseInsensitiveStringMap(others);
    }

    /** The ranges of a batch, divided among as many tasks as the options say. */
    static InputPartition[] shared(Batch kafka, CaseInsensitiveStringMap options) {
        InputPartition[] ranges = kafka.planInputPartitions();
        int tasks = Math.min(options.getInt(PREFIX + "tasks", ranges.length), ranges.length);
        InputPartition[] shared = new InputPartition[tasks];
        for (int i = 0; i < tasks; i++) {
            int from = (int) ((long) ranges.length * i / tasks);
            int to = (int) ((long) ranges.length * (i + 1) / tasks);
            InputPartition[] some = new InputPartition[to - from];
            System.arraycopy(ranges, from, some, 0, to - from);
            shared[i] = new Shared(i, some);
        }
        return shared;
    }

    /** Ranges that one task reads, one after the other. */
    static class Shared implements InputPartition {
        final int number;
        final InputPartition[] ranges;

        Shared(int number, InputPartition[] ranges) {
            this.number = number;
            this.ranges = ranges;
        }

        public String[] preferredLocations() {
            return ranges.length == 1 ? ranges[0].preferredLocations() : new String[0];
        }
    }
}
