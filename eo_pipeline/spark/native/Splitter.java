package eo.pipeline;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/**
 * Reads some ranges for all tables, in one task. Each record is decoded once for the tables that take
 * it and have the same decoder: where they are staged by {@link RangeStager}, its row is; for those of
 * which Spark makes the rows, it is held until all are read.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Splitter {
    private static final int OFTEN = 1023;

    private final PartitionReaderFactory kafka;
    private final SplitTables tables;
    private final KafkaRanges.Shared part;

    /** By a table's number; null: its records are counted alone. */
    private final Decoder[] decoders;
    private final RangeStager[] stagers;
    private final PlannedRows[] planned;

    private final HeldRows held = new HeldRows();

    private final long[] taken;
    private final int[] taking;
    private long records;
    private long bytes;
    private long keyBytes;
    private long rest;
    private Object[] firstOfRest;

    Splitter(PartitionReaderFactory kafka, SplitTables tables, KafkaRanges.Shared part) {
        this.kafka = kafka;
        this.tables = tables;
        this.part = part;
        int many = tables.stagings.length;
        taken = new long[many];
        taking = new int[many];
        decoders = new Decoder[many];
        stagers = new RangeStager[many];
        planned = new PlannedRows[many];
        Decoder[] byNumber = new Decoder[many];
        for (int i = 0; i < many; i++) {
            Decoding decoding = tables.decodingOf(i);
            if (decoding != null) {
                int number = tables.decoders[i];
                if (byNumber[number] == null) {
                    byNumber[number] = new Decoder(decoding);
                }
                decoders[i] = byNumber[number];
                decoders[i].add(i, decoding);
            }
        }
    }

    /** What is told of each table and, as of table -1, of all records. */
    ArrayList split(TaskContext context, Partition[] ofPlans) throws IOException {
        for (int i = 0; i < part.ranges.length; i++) {
            read(part.ranges[i], context);
        }
        held.finish();
        ArrayList told = new ArrayList();
        told.add(new Object[] {new Integer(-1), null, null, null, Totals.json(counted())});
        for (int i = 0; i < decoders.length; i++) {
            if (stagers[i] != null) {
                stagers[i].finish();
                told.add(stagers[i].told(i));
            } else if (planned[i] != null) {
                told.add(planned(i, context, ofPlans[i]));
            }
        }
        return told;
    }

    /** Stages the rows that a plan makes of the records that are held. */
    private Object[] planned(int number, TaskContext context, Partition of) throws IOException {
        SplitTables.TablePlan plan = tables.plans[number];
        boolean isStaged = decoders[number].decoder.why() == null && planned[number].rows > 0;
        Object[] staged = isStaged
            ? plan.writer.staged(context, plan.rows.iterator(of, context)) : new Object[3];
        return new Object[] {
            new Integer(number), staged[0], staged[1], staged[2],
            Totals.json(decoders[number].counted(number))};
    }

    private void read(InputPartition range, TaskContext context) throws IOException {
        PartitionReader reader = kafka.createReader(range);
        try {
            for (int i = 0; i < decoders.length; i++) {
                if (decoders[i] != null) {
                    decoders[i].begin();
                }
            }
            while (reader.next()) {
                if ((records++ & OFTEN) == 0) {
                    context.killTaskIfInterrupted();
                }
                split((InternalRow) reader.get());
            }
        } finally {
            reader.close();
        }
    }

    private void split(InternalRow record) throws IOException {
        bytes += size(record, KafkaRanges.VALUE);
        keyBytes += size(record, KafkaRanges.KEY);
        int many = tables.conditions.taking(record, taking);
        for (int i = 0; i < many; i++) {
            taken[taking[i]]++;
            Decoder decoder = decoders[taking[i]];
            if (decoder != null && decoder.last != records) {
                decoder.last = records;
                decoder.put(record);
            }
        }
        if (many == 0) {
            leave(record);
        }
    }

    private static int size(InternalRow record, int place) {
        return record.isNullAt(place) ? 0 : record.getBinary(place).length;
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

    /** The rows that are held for a table; null: none are. */
    PartitionReader held(int number) {
        PlannedRows of = planned[number];
        return of == null ? null : held.reader(of.kind, of.columns.size());
    }

    void close() throws IOException {
        for (int i = 0; i < decoders.length; i++) {
            if (decoders[i] != null) {
                decoders[i].decoder.close();
            }
            if (stagers[i] != null) {
                stagers[i].close();
            }
        }
    }

    /** Holds the rows that the plans of some tables read, all of the same columns. */
    private final class PlannedRows {
        final int kind;
        final StructType columns;
        long rows;
        private final DecodedRow row;
        private final UnsafeProjection projection;

        PlannedRows(int kind, SplitTables.TablePlan plan) {
            this.kind = kind;
            columns = plan.read;
            row = new DecodedRow(plan.columns);
            projection = UnsafeProjection.create(columns);
        }

        void put(Object[] values, InternalRow record) throws IOException {
            held.put(kind, projection.apply(row.of(values, record)));
            rows++;
        }
    }

    /** Decodes the records that some tables take, all of them the same ones. */
    private final class Decoder {
        final RecordDecoder decoder;

        /** Number of the last record that was put, of those that are read. */
        long last;

        /** The tables' numbers, by which their letters are in the decoder. */
        private final ArrayList numbers = new ArrayList();
        private final ArrayList ofStagers = new ArrayList();

        /** What is held, by the columns that are read. */
        private final HashMap rows = new HashMap();

        Decoder(Decoding decoding) {
            decoder = new RecordDecoder(decoding);
        }

        void add(int number, Decoding decoding) {
            if (!numbers.isEmpty()) {
                decoder.alsoFor(decoding.letters);
            }
            Staging staging = tables.stagings[number];
            if (staging == null) {
                SplitTables.TablePlan plan = tables.plans[number];
                if (!rows.containsKey(plan.read)) {
                    rows.put(plan.read, new PlannedRows(number, plan));
                }
                planned[number] = (PlannedRows) rows.get(plan.read);
            } else {
                stagers[number] = new RangeStager(staging, decoder, numbers.size());
                ofStagers.add(stagers[number]);
            }
            numbers.add(new Integer(number));
        }

        void begin() {
            for (int i = 0; i < ofStagers.size(); i++) {
                ((RangeStager) ofStagers.get(i)).begin();
            }
            Iterator all = rows.values().iterator();
            while (all.hasNext()) {
                ((PlannedRows) all.next()).row.begin();
            }
        }

        void put(InternalRow record) throws IOException {
            boolean isNeeded = !rows.isEmpty();
            for (int i = 0; i < ofStagers.size() && !isNeeded; i++) {
                isNeeded = ((RangeStager) ofStagers.get(i)).goesOn();
            }
            if (!isNeeded || decoder.why() != null) {
                return;
            }
            Object[] values = decoder.taken(record);
            for (int i = 0; i < ofStagers.size(); i++) {
                ((RangeStager) ofStagers.get(i)).put(record, values);
            }
            Iterator all = rows.values().iterator();
            while (values != null && all.hasNext()) {
                ((PlannedRows) all.next()).put(values, record);
            }
        }

        /** What was counted for a table. */
        HashMap counted(int number) throws IOException {
            return decoder.counted(numbers.indexOf(new Integer(number)));
        }
    }
}
