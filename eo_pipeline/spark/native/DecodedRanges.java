package eo.pipeline;

import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
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
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

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
    static final String KAFKA = "_kafka";

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

        Reading(CaseInsensitiveStringMap options, StructType columns) {
            this.options = options;
            this.columns = columns;
            this.read = columns;
        }

        private String told(String name) {
            return options.get(KafkaRanges.PREFIX + name);
        }

        /** Only of "_kafka" parts of a column can be left out. */
        public void pruneColumns(StructType required) {
            if (told("totals") == null) {
                return;
            }
            StructType kept = new StructType();
            for (int i = 0; i < columns.size(); i++) {
                String name = columns.apply(i).name();
                if (Arrays.asList(required.fieldNames()).contains(name)) {
                    kept = kept.add(name.equals(KAFKA) ? required.apply(name) : columns.apply(i));
                }
            }
            read = kept;
        }

        public Scan build() {
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
                kafka = KafkaRanges.batch(readsHeaders() ? withHeaders() : options);
            }
            return this;
        }

        /** Whether a column has them; the options say if decoding needs them. */
        private boolean readsHeaders() {
            boolean found = false;
            for (int i = 0; i < read.size(); i++) {
                DataType type = read.apply(i).dataType();
                boolean isKafka = read.apply(i).name().equals(KAFKA);
                found |= isKafka && Arrays.asList(((StructType) type).fieldNames()).contains("headers");
            }
            return found;
        }

        private CaseInsensitiveStringMap withHeaders() {
            HashMap others = new HashMap(options.asCaseSensitiveMap());
            others.put("includeHeaders", "true");
            return new CaseInsensitiveStringMap(others);
        }

        /** Planned once: each copy of a plan's node asks, and Spark's source then asks Kafka. */
        public InputPartition[] planInputPartitions() {
            if (shared == null) {
                shared = KafkaRanges.shared(kafka, options);
            }
            HashMap planned = new HashMap();
            planned.put("parts", new Integer(shared.length));
            Totals.of(told("totals")).put(-1, planned);
            return shared;
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Readers(kafka.createReaderFactory(), new Rows(options, read));
        }
    }

    /** Which columns are read, and of what. */
    static class Rows implements Serializable {
        private final Decoding decoding;
        private final Totals.Parts totals;

        /** Of the columns that are read: their places among those of the value; -1: Kafka's. */
        private final int[] places;

        /** Of Kafka's columns that are read: their places in Kafka's record. */
        private final int[] ofKafka;

        Rows(CaseInsensitiveStringMap options, StructType read) {
            decoding = new Decoding(options);
            totals = Totals.of(options.get(KafkaRanges.PREFIX + "totals"));
            places = new int[read.size()];
            int[] found = new int[0];
            for (int i = 0; i < places.length; i++) {
                boolean isKafka = read.apply(i).name().equals(KAFKA);
                places[i] = isKafka ? -1 : decoding.columns.fieldIndex(read.apply(i).name());
                if (isKafka) {
                    found = kafkas((StructType) read.apply(i).dataType());
                }
            }
            ofKafka = found;
        }

        private static int[] kafkas(StructType wanted) {
            String[] names = {
                "key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers"};
            int[] found = new int[wanted.size()];
            for (int i = 0; i < found.length; i++) {
                found[i] = Arrays.asList(names).indexOf(wanted.apply(i).name());
            }
            return found;
        }
    }

    /** What executors are sent. */
    static class Readers implements PartitionReaderFactory {
        private final PartitionReaderFactory kafka;
        private final Rows rows;

        Readers(PartitionReaderFactory kafka, Rows rows) {
            this.kafka = kafka;
            this.rows = rows;
        }

        public PartitionReader createReader(InputPartition partition) {
            return new Reader(kafka, (KafkaRanges.Shared) partition, rows);
        }
    }

    /** The rows of some ranges, one after the other. */
    static class Reader implements PartitionReader {
        private static final int TIMESTAMP = 5;
        private static final int TIMESTAMP_TYPE = 6;

        // 0001-01-01 and the last microsecond of 9999-12-31
        private static final long FIRST_MICROS = -62135596800000000L;
        private static final long LAST_MICROS = 253402300799999999L;

        private final PartitionReaderFactory kafka;
        private final KafkaRanges.Shared part;
        private final Rows rows;
        private final RecordDecoder decoder;
        private final Object[] row;
        private final Object[] coordinates;
        private final InternalRow made;
        private PartitionReader reader;
        private UTF8String topic;
        private Integer partition;
        private int next;

        Reader(PartitionReaderFactory kafka, KafkaRanges.Shared part, Rows rows) {
            this.kafka = kafka;
            this.part = part;
            this.rows = rows;
            decoder = new RecordDecoder(rows.decoding);
            row = new Object[rows.places.length];
            coordinates = new Object[rows.ofKafka.length];
            made = new GenericInternalRow(row);
            for (int i = 0; i < row.length; i++) {
                if (rows.places[i] < 0) {
                    row[i] = new GenericInternalRow(coordinates);
                }
            }
        }

        public boolean next() throws IOException {
            while (true) {
                if (reader == null) {
                    if (next == part.ranges.length) {
                        rows.totals.put(part.number, decoder.counted());
                        return false;
                    }
                    reader = kafka.createReader(part.ranges[next++]);
                    topic = null;
                }
                while (reader.next()) {
                    InternalRow record = (InternalRow) reader.get();
                    Object[] values = decoder.taken(record);
                    if (values != null) {
                        fill(values, record);
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

        private void fill(Object[] values, InternalRow record) {
            for (int i = 0; i < row.length; i++) {
                int place = rows.places[i];
                if (place >= 0) {
                    row[i] = values[place];
                }
            }
            for (int i = 0; i < coordinates.length; i++) {
                coordinates[i] = ofKafka(rows.ofKafka[i], record);
            }
        }

        private Object ofKafka(int place, InternalRow record) {
            switch (place) {
                case KafkaRanges.TOPIC:
                    if (topic == null) {
                        topic = record.getUTF8String(place).copy();
                    }
                    return topic;
                case KafkaRanges.PARTITION:
                    if (partition == null || partition.intValue() != record.getInt(place)) {
                        partition = new Integer(record.getInt(place));
                    }
                    return partition;
                case KafkaRanges.OFFSET:
                    return new Long(record.getLong(place));
                case TIMESTAMP:
                    long micros = record.getLong(place);
                    boolean isKept = micros >= FIRST_MICROS && micros <= LAST_MICROS;
                    return isKept && !record.isNullAt(place) ? new Long(micros) : null;
                case TIMESTAMP_TYPE:
                    return new Integer(record.getInt(place));
                case KafkaRanges.HEADERS:
                    return record.isNullAt(place) ? null : record.getArray(place);
                default:
                    return record.isNullAt(place) ? null : record.getBinary(place);
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
