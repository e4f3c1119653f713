package eo.pipeline;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.Job;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.parquet.ParquetOptions;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.SerializableConfiguration;

/**
 * A source of Spark's whose rows tell of files: what Spark's own Kafka source reads by the same
 * options is staged by the tasks that read it, see {@link RangeStager}, and a task gives one row,
 * which says what it wrote and what it counted.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class StagedRanges implements TableProvider {
    static final String PREFIX = "eo.";
    private static final String HADOOP = PREFIX + "hadoop.";

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return RangeStager.TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Ranges();
    }

    /** What is read of: there is nothing to know before its options are. */
    static class Ranges implements Table, SupportsRead {
        public String name() {
            return "StagedRanges";
        }

        public StructType schema() {
            return RangeStager.TOLD;
        }

        public Set capabilities() {
            return new HashSet(Arrays.asList(new Object[] {TableCapability.BATCH_READ}));
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Reading(options);
        }
    }

    /** One reading, as the driver knows it. */
    static class Reading implements ScanBuilder, Scan, Batch {
        private final CaseInsensitiveStringMap options;
        private final Batch kafka;

        Reading(CaseInsensitiveStringMap options) {
            this.options = options;
            this.kafka = kafka(options);
        }

        private static Batch kafka(CaseInsensitiveStringMap options) {
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

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return RangeStager.TOLD;
        }

        public String description() {
            return "StagedRanges of Kafka into " + options.get(PREFIX + "folder");
        }

        public Batch toBatch() {
            return this;
        }

        public InputPartition[] planInputPartitions() {
            InputPartition[] ranges = kafka.planInputPartitions();
            int tasks = Math.min(options.getInt(PREFIX + "tasks", ranges.length), ranges.length);
            InputPartition[] shared = new InputPartition[tasks];
            for (int i = 0; i < tasks; i++) {
                int from = (int) ((long) ranges.length * i / tasks);
                int to = (int) ((long) ranges.length * (i + 1) / tasks);
                InputPartition[] some = new InputPartition[to - from];
                System.arraycopy(ranges, from, some, 0, to - from);
                shared[i] = new Shared(some);
            }
            return shared;
        }

        public PartitionReaderFactory createReaderFactory() {
            try {
                Staging staging = new Staging(options);
                return new Stagers(kafka.createReaderFactory(), staging, written(staging));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        /** How files are written, as where Spark writes Parquet itself. */
        private SerializableConfiguration written(Staging staging) throws java.io.IOException {
            scala.collection.immutable.Map none =
                (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty();
            SparkSession session = (SparkSession) SparkSession.active();
            Configuration conf = session.sessionState().newHadoopConfWithOptions(none);
            Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
            while (all.hasNext()) {
                Map.Entry each = (Map.Entry) all.next();
                String name = (String) each.getKey();
                if (name.startsWith(HADOOP)) {
                    conf.set(name.substring(HADOOP.length()), (String) each.getValue());
                }
            }
            Job job = Job.getInstance(conf);
            ParquetUtils.prepareWrite(
                SQLConf.get(), job, staging.written, new ParquetOptions(none, SQLConf.get()));
            return new SerializableConfiguration(job.getConfiguration());
        }
    }

    /** Ranges that one task reads, one after the other. */
    static class Shared implements InputPartition {
        final InputPartition[] ranges;

        Shared(InputPartition[] ranges) {
            this.ranges = ranges;
        }

        public String[] preferredLocations() {
            return ranges.length == 1 ? ranges[0].preferredLocations() : new String[0];
        }
    }

    /** What executors are sent. */
    static class Stagers implements PartitionReaderFactory {
        private final PartitionReaderFactory kafka;
        private final Staging staging;
        private final SerializableConfiguration conf;
        private final String why;

        Stagers(PartitionReaderFactory kafka, Staging staging, SerializableConfiguration conf) {
            this.kafka = kafka;
            this.staging = staging;
            this.conf = conf;
            boolean isSplit = SQLConf.get().maxRecordsPerFile() > 0;
            this.why = isSplit ? "files of so many rows" : StagedFile.leftToSpark(conf.value());
        }

        public PartitionReader createReader(InputPartition partition) {
            return new RangeStager(kafka, ((Shared) partition).ranges, staging, conf.value(), why);
        }
    }
}
