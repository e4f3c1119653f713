package eo.pipeline;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A source of Spark's whose rows tell of files: what Spark's own Kafka source reads by the same
 * options is staged by the tasks that read it, see {@link RangeStager}, and a task gives one row,
 * which says what it wrote and what it counted.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class StagedRanges implements TableProvider {
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return RangeStager.TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Ranges();
    }

    /** What is read of: there is nothing to know before its options are. */
    static class Ranges extends OptionsTable {
        Ranges() {
            super("StagedRanges", RangeStager.TOLD);
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
            this.kafka = KafkaRanges.batch(options);
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return RangeStager.TOLD;
        }

        public String description() {
            return "StagedRanges of Kafka into " + options.get(KafkaRanges.PREFIX + "folder");
        }

        public Batch toBatch() {
            return this;
        }

        public InputPartition[] planInputPartitions() {
            return KafkaRanges.shared(kafka, options);
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Stagers(KafkaReaders.of(kafka), new Staging(options));
        }
    }

    /** What executors are sent. */
    static class Stagers implements PartitionReaderFactory {
        private final PartitionReaderFactory kafka;
        private final Staging staging;

        Stagers(PartitionReaderFactory kafka, Staging staging) {
            this.kafka = kafka;
            this.staging = staging;
        }

        public PartitionReader createReader(InputPartition partition) {
            return new RangeStager(kafka, ((KafkaRanges.Shared) partition).ranges, staging);
        }
    }
}
