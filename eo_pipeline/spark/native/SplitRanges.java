package eo.pipeline;

import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;

/**
 * A source of Spark's like {@link StagedRanges}, for several tables: a task reads its ranges once,
 * and each record is staged for every table that takes it. It gives a row for each table that is
 * staged here, and one, of table -1, that counts what was read, and how much each table takes.
 *
 * Which tables take a record says the view "conditions", see {@link Conditions}.
 * The options of table n begin with "eo.table.n.".
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class SplitRanges implements TableProvider {
    static final StructType TOLD = numbered();

    private static StructType numbered() {
        StructType told = new StructType().add("number", DataTypes.IntegerType);
        for (int i = 0; i < RangeStager.TOLD.size(); i++) {
            told = told.add(RangeStager.TOLD.apply(i));
        }
        return told;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Ranges();
    }

    /** What is read of: there is nothing to know before its options are. */
    static class Ranges extends OptionsTable {
        Ranges() {
            super("SplitRanges", TOLD);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Reading(options);
        }
    }

    /** One reading, as the driver knows it. */
    static class Reading extends KafkaRanges.Reading {
        Reading(CaseInsensitiveStringMap options) {
            super(options, TOLD, "SplitRanges of Kafka");
        }

        public PartitionReaderFactory createReaderFactory() {
            return new Splitters(kafka.createReaderFactory(), new Tables(options));
        }
    }

    /** What the options say of the tables. */
    static class Tables implements Serializable {
        final Conditions conditions;

        /** By a table's number; null: it is counted alone. */
        final Staging[] stagings;
        final SerializableConfiguration[] confs;

        Tables(CaseInsensitiveStringMap options) {
            String view = options.get(KafkaRanges.PREFIX + "conditions");
            conditions = Conditions.of((SparkSession) SparkSession.active(), view);
            int many = options.getInt(KafkaRanges.PREFIX + "tables", 0);
            stagings = new Staging[many];
            confs = new SerializableConfiguration[many];
            for (int i = 0; i < many; i++) {
                CaseInsensitiveStringMap ofTable = ofTable(options, KafkaRanges.PREFIX + "table." + i + ".");
                if (!ofTable.isEmpty()) {
                    stagings[i] = new Staging(ofTable);
                    confs[i] = StagedFile.settings(ofTable, stagings[i].written);
                }
            }
        }

        private static CaseInsensitiveStringMap ofTable(CaseInsensitiveStringMap options, String prefix) {
            HashMap own = new HashMap();
            Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
            while (all.hasNext()) {
                Map.Entry each = (Map.Entry) all.next();
                String name = (String) each.getKey();
                if (name.startsWith(prefix)) {
                    own.put(KafkaRanges.PREFIX + name.substring(prefix.length()), each.getValue());
                }
            }
            return new CaseInsensitiveStringMap(own);
        }
    }

    /** What executors are sent. */
    static class Splitters implements PartitionReaderFactory {
        private final PartitionReaderFactory kafka;
        private final Tables tables;

        Splitters(PartitionReaderFactory kafka, Tables tables) {
            this.kafka = kafka;
            this.tables = tables;
        }

        public PartitionReader createReader(InputPartition partition) {
            return new Splitter(kafka, ((KafkaRanges.Shared) partition).ranges, tables);
        }
    }

    /** Reads some ranges for all tables. */
    static class Splitter implements PartitionReader {
        private static final int OFTEN = 1023;

        private final PartitionReaderFactory kafka;
        private final InputPartition[] ranges;
        private final Tables tables;
        private final RangeStager[] stagers;
        private final long[] taken;
        private final int[] taking;
        private long records;
        private long bytes;
        private long keyBytes;
        private long rest;
        private Object[] firstOfRest;
        private int next = -2;

        Splitter(PartitionReaderFactory kafka, InputPartition[] ranges, Tables tables) {
            this.kafka = kafka;
            this.ranges = ranges;
            this.tables = tables;
            taken = new long[tables.stagings.length];
            taking = new int[taken.length];
            stagers = new RangeStager[taken.length];
            for (int i = 0; i < stagers.length; i++) {
                if (tables.stagings[i] != null) {
                    String why = StagedFile.leftToSpark(tables.confs[i].value());
                    stagers[i] = new RangeStager(null, null, tables.stagings[i], tables.confs[i].value(), why);
                }
            }
        }

        public boolean next() throws IOException {
            if (next == -2) {
                for (int i = 0; i < ranges.length; i++) {
                    read(ranges[i]);
                }
                for (int i = 0; i < stagers.length; i++) {
                    if (stagers[i] != null) {
                        stagers[i].finish();
                    }
                }
            }
            next++;
            while (next >= 0 && next < stagers.length && stagers[next] == null) {
                next++;
            }
            return next < stagers.length;
        }

        private void read(InputPartition range) throws IOException {
            PartitionReader reader = kafka.createReader(range);
            try {
                for (int i = 0; i < stagers.length; i++) {
                    if (stagers[i] != null) {
                        stagers[i].begin();
                    }
                }
                while (reader.next()) {
                    split((InternalRow) reader.get());
                }
            } finally {
                reader.close();
            }
        }

        private void split(InternalRow record) throws IOException {
            if ((records++ & OFTEN) == 0) {
                TaskContext.get().killTaskIfInterrupted();
            }
            bytes += size(record, KafkaRanges.VALUE);
            keyBytes += size(record, KafkaRanges.KEY);
            int many = tables.conditions.taking(record, taking);
            for (int i = 0; i < many; i++) {
                int number = taking[i];
                taken[number]++;
                if (stagers[number] != null) {
                    stagers[number].put(record);
                }
            }
            if (many == 0) {
                leave(record);
            }
        }

        private static int size(InternalRow record, int place) {
            return record.isNullAt(place) ? 0 : record.getUTF8String(place).numBytes();
        }

        private void leave(InternalRow record) {
            rest++;
            String topic = record.getUTF8String(KafkaRanges.TOPIC).toString();
            int partition = record.getInt(KafkaRanges.PARTITION);
            long offset = record.getLong(KafkaRanges.OFFSET);
            if (firstOfRest == null || isBefore(topic, partition, offset)) {
                firstOfRest = new Object[] {topic, new Integer(partition), new Long(offset)};
            }
        }

        private boolean isBefore(String topic, int partition, long offset) {
            int order = topic.compareTo((String) firstOfRest[0]);
            if (order == 0) {
                order = Integer.compare(partition, ((Integer) firstOfRest[1]).intValue());
            }
            if (order == 0) {
                order = Long.compare(offset, ((Long) firstOfRest[2]).longValue());
            }
            return order < 0;
        }

        public Object get() {
            Object[] row = new Object[TOLD.size()];
            row[0] = new Integer(next);
            if (next < 0) {
                row[row.length - 1] = UTF8String.fromString(Totals.json(counted()));
            } else {
                Object[] told = stagers[next].told();
                System.arraycopy(told, 0, row, 1, told.length);
            }
            return new GenericInternalRow(row);
        }

        private HashMap counted() {
            HashMap counted = new HashMap();
            counted.put("records", new Long(records));
            counted.put("bytes", new Long(bytes));
            counted.put("key_bytes", new Long(keyBytes));
            counted.put("rest", new Long(rest));
            counted.put("first", firstOfRest);
            counted.put("taken", taken);
            return counted;
        }

        public void close() throws IOException {
            for (int i = 0; i < stagers.length; i++) {
                if (stagers[i] != null) {
                    stagers[i].close();
                }
            }
        }
    }
}
