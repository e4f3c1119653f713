package eo.pipeline;

import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A source of Spark's: the good records of ranges of Kafka as rows, with the columns of their values
 * and "_kafka". What it reads is counted where it is read, as {@link Totals} of the name that the
 * options give.
 *
 * Without a name it stands for Spark's Kafka source in the plans of a {@link Judge}, and is never
 * read.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class DecodedRanges implements TableProvider {
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return (StructType) DataType.fromJson(options.get(KafkaRanges.PREFIX + "schema"));
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Records(schema);
    }

    static class Records extends OptionsTable {
        private final StructType columns;

        Records(StructType columns) {
            super("DecodedRanges", columns);
            this.columns = columns;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Reading(options, columns);
        }
    }

    /** One reading, as the driver knows it. */
    static class Reading implements ScanBuilder, SupportsPushDownRequiredColumns, Scan, Batch {
        private final CaseInsensitiveStringMap options;
        private final StructType columns;
        private StructType read;
        private Batch kafka;
        private InputPartition[] shared;

        /** The job that reads the records of several tables; null: these are read alone. */
        private Split split;

        Reading(CaseInsensitiveStringMap options, StructType columns) {
            this.options = options;
            this.columns = columns;
            this.read = columns;
        }

        private String told(String name) {
            return options.get(KafkaRanges.PREFIX + name);
        }

        /** Columns can be left out, and fields of "_kafka"; of what is in them, nothing. */
        public void pruneColumns(StructType required) {
            if (told("totals") != null) {
                read = pruned(columns, required, true);
            }
        }

        private static StructType pruned(StructType all, StructType required, boolean ofColumns) {
            StructType kept = new StructType();
            for (int i = 0; i < all.size(); i++) {
                StructField field = all.apply(i);
                if (Arrays.asList(required.fieldNames()).contains(field.name())) {
                    boolean isKafka = ofColumns && field.name().equals(DecodedRow.Columns.KAFKA);
                    kept = kept.add(isKafka ? withFields(field, required.apply(field.name())) : field);
                }
            }
            return kept;
        }

        private static StructField withFields(StructField field, StructField required) {
            StructType kept = pruned((StructType) field.dataType(), (StructType) required.dataType(), false);
            return new StructField(field.name(), kept, field.nullable(), field.metadata());
        }

        public Scan build() {
            split = told("split") == null ? null : Split.named(told("split"));
            if (split != null) {
                split.reads(told("number"), read);
            }
            return this;
        }

        public StructType readSchema() {
            return read;
        }

        public String description() {
            return "DecodedRanges of Kafka";
        }

        public Batch toBatch() {
            if (kafka == null) {
                boolean isMore = DecodedRow.Columns.readsHeaders(read);
                kafka = KafkaRanges.batch(isMore ? KafkaRanges.withHeaders(options) : options);
            }
            return this;
        }

        /** Planned once: each copy of a plan's node asks, and Spark's source then asks Kafka. */
        public InputPartition[] planInputPartitions() {
            if (split != null) {
                return split.parts();
            }
            if (shared == null) {
                shared = KafkaRanges.shared(kafka, options);
            }
            HashMap planned = new HashMap();
            planned.put("parts", new Integer(shared.length));
            Totals.of(told("totals")).put(-1, planned);
            return shared;
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Readers(
                KafkaReaders.of(kafka), new Decoding(options), Totals.of(told("totals")), read,
                split == null ? -1 : Integer.parseInt(told("number")));
        }
    }

    /** What executors are sent. */
    static class Readers implements PartitionReaderFactory {
        private final PartitionReaderFactory kafka;
        private final Decoding decoding;
        private final Totals.Parts totals;
        private final DecodedRow.Columns columns;

        /** Number of the table in a {@link Split}; -1: there is none. */
        private final int number;

        Readers(
                PartitionReaderFactory kafka, Decoding decoding, Totals.Parts totals, StructType read,
                int number) {
            this.kafka = kafka;
            this.decoding = decoding;
            this.totals = totals;
            this.columns = new DecodedRow.Columns(decoding.columns, read);
            this.number = number;
        }

        /** Of a task that read for several tables what it read. */
        public PartitionReader createReader(InputPartition partition) {
            PartitionReader held = number < 0 ? null : SplitRdd.held(number);
            return held != null ? held : new Reader(this, (KafkaRanges.Shared) partition);
        }
    }

    /** The rows of some ranges, one after the other. */
    static class Reader implements PartitionReader {
        private final Readers of;
        private final KafkaRanges.Shared part;
        private final RecordDecoder decoder;
        private final DecodedRow row;
        private InternalRow made;
        private PartitionReader reader;
        private int next;

        Reader(Readers of, KafkaRanges.Shared part) {
            this.of = of;
            this.part = part;
            decoder = new RecordDecoder(of.decoding);
            row = new DecodedRow(of.columns);
        }

        public boolean next() throws IOException {
            while (true) {
                if (reader == null) {
                    if (next == part.ranges.length) {
                        of.totals.put(part.number, decoder.counted());
                        return false;
                    }
                    reader = of.kafka.createReader(part.ranges[next++]);
                    row.begin();
                }
                while (reader.next()) {
                    InternalRow record = (InternalRow) reader.get();
                    Object[] values = decoder.taken(record);
                    if (values != null) {
                        made = row.of(values, record);
                        return true;
                    }
                    if (decoder.why() != null) {
                        next = part.ranges.length; // nothing of this counts
                        break;
                    }
                }
                reader.close();
                reader = null;
            }
        }

        public Object get() {
            return made;
        }

        public void close() throws IOException {
            if (reader != null) {
                reader.close();
            }
            decoder.close();
        }
    }
}
