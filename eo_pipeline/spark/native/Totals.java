package eo.pipeline;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.AccumulatorV2;

/**
 * Totals of the parts of a job, by the number of the part. A part that is done twice, as Spark does
 * if a task or a stage is repeated or a plan reads a source twice, counts once.
 *
 * Also a source of Spark's: the totals that have a name, one JSON text for each part, after which
 * they are forgotten.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class Totals implements TableProvider {
    private static final int MOST = 1000;
    private static final StructType TOLD = new StructType().add("part", DataTypes.StringType);
    private static final LinkedHashMap NAMED = new LinkedHashMap();

    /** The totals of a name, on the driver; made when they are first asked for. */
    static Parts of(String name) {
        synchronized (NAMED) {
            Parts found = (Parts) NAMED.get(name);
            if (found == null) {
                found = new Parts();
                SparkContext.getOrCreate().register(found);
                while (NAMED.size() >= MOST) {
                    NAMED.remove(NAMED.keySet().iterator().next());
                }
                NAMED.put(name, found);
            }
            return found;
        }
    }

    private static Parts taken(String name) {
        synchronized (NAMED) {
            Parts found = (Parts) NAMED.remove(name);
            return found == null ? new Parts() : found;
        }
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Named();
    }

    static class Named extends OptionsTable {
        Named() {
            super("Totals", TOLD);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Telling(options.get(KafkaRanges.PREFIX + "totals"));
        }
    }

    static class Telling implements ScanBuilder, LocalScan {
        private final String name;

        Telling(String name) {
            this.name = name;
        }

        public org.apache.spark.sql.connector.read.Scan build() {
            return this;
        }

        public StructType readSchema() {
            return TOLD;
        }

        public InternalRow[] rows() {
            return told(name);
        }
    }

    /** The totals of a name, as rows; after that they are forgotten. */
    static InternalRow[] told(String name) {
        Map parts = (Map) taken(name).value();
        InternalRow[] rows = new InternalRow[parts.size()];
        Iterator all = parts.values().iterator();
        for (int i = 0; i < rows.length; i++) {
            rows[i] = new GenericInternalRow(
                new Object[] {UTF8String.fromString(json((Map) all.next()))});
        }
        return rows;
    }

    /** What was counted, as text. */
    static String json(Map counted) {
        try {
            return new ObjectMapper().writeValueAsString(counted);
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Of each part what it counted, a map; a heartbeat may look while a task puts. */
    static class Parts extends AccumulatorV2 {
        private final ConcurrentSkipListMap parts = new ConcurrentSkipListMap();

        void put(int number, HashMap counted) {
            parts.put(new Integer(number), counted);
        }

        public boolean isZero() {
            return parts.isEmpty();
        }

        public AccumulatorV2 copy() {
            Parts copy = new Parts();
            copy.merge(this);
            return copy;
        }

        public void reset() {
            parts.clear();
        }

        public void add(Object none) {
            throw new UnsupportedOperationException("parts are put by their numbers");
        }

        public void merge(AccumulatorV2 other) {
            parts.putAll(((Parts) other).parts);
        }

        public Object value() {
            return parts;
        }
    }
}
