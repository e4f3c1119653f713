package eo.pipeline;

import java.io.IOException;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.io.OutputFile;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Stages the ordinary records of some ranges in one file, in one pass, and tells of them in one row;
 * which holds the file itself if there is no folder for it.
 *
 * It goes on as long as there is nothing to judge: every record is what {@link OrdinaryJson} takes
 * for ordinary, has no field that the schema does not name, and makes a row that any store takes. At
 * the first other one it stops and says so, and nothing of it counts.
 */
class RangeStager implements PartitionReader {
    static final StructType TOLD = new StructType()
        .add("why", DataTypes.StringType)
        .add("file", DataTypes.StringType)
        .add("held", DataTypes.BinaryType)
        .add("rows", DataTypes.LongType)
        .add("records", DataTypes.LongType)
        .add("bytes", DataTypes.LongType)
        .add("key_bytes", DataTypes.LongType)
        .add("skipped", DataTypes.LongType)
        .add("checksum_low", DataTypes.LongType)
        .add("checksum_high", DataTypes.LongType)
        .add("checksum_xor", DataTypes.LongType);

    private static final int VALUE = 1;
    private static final int TOPIC = 2;
    private static final int PARTITION = 3;
    private static final int OFFSET = 4;
    private static final int OFTEN = 1023;
    private static final long HELD_BYTES = 64L << 20;
    private static final long ONES = 0x0101010101010101L;
    private static final long HIGHS = ONES * 0x80;
    private static final long HALF = 0xffffffffL;

    private final PartitionReaderFactory kafka;
    private final InputPartition[] ranges;
    private final Staging staging;
    private final Configuration conf;
    private final int[] kinds;
    private final Object[] row;

    private boolean isDone;
    private String why;
    private String file;
    private HeldFile held;
    private StagedFile writer;
    private RowDocument document;
    private long written;
    private long records;
    private long bytes;
    private long keyBytes;
    private long skipped;
    private long low;
    private long high;
    private long xor;

    RangeStager(
            PartitionReaderFactory kafka, InputPartition[] ranges, Staging staging, Configuration conf,
            String why) {
        this.kafka = kafka;
        this.ranges = ranges;
        this.staging = staging;
        this.conf = conf;
        this.why = why;
        int many = staging.rows.size();
        kinds = new int[many];
        for (int i = 0; i < many; i++) {
            kinds[i] = Plain.kind(staging.rows.apply(i).dataType());
        }
        row = new Object[many];
        row[staging.fields] = new Long(staging.checkpoint);
    }

    public boolean next() throws IOException {
        if (isDone) {
            return false;
        }
        isDone = true;
        try {
            for (int i = 0; i < ranges.length && why == null; i++) {
                stage(ranges[i]);
            }
            if (writer != null) {
                writer.finish();
            }
            tell(TaskContext.get().taskMetrics());
        } finally {
            close();
        }
        return true;
    }

    private void stage(InputPartition range) throws IOException {
        PartitionReader reader = kafka.createReader(range);
        try {
            boolean isFirst = true;
            while (why == null && reader.next()) {
                InternalRow record = (InternalRow) reader.get();
                if (isFirst && row.length > staging.fields + 1) {
                    row[staging.fields + 1] = record.getUTF8String(TOPIC).copy();
                    row[staging.fields + 2] = new Integer(record.getInt(PARTITION));
                }
                isFirst = false;
                why = staged(record);
            }
        } finally {
            reader.close();
        }
    }

    /** Null, or why it is not staged here. */
    private String staged(InternalRow record) throws IOException {
        if ((records++ & OFTEN) == 0) {
            TaskContext.get().killTaskIfInterrupted();
        }
        if (!record.isNullAt(0)) {
            keyBytes += record.getUTF8String(0).numBytes();
        }
        if (record.isNullAt(VALUE)) {
            skipped++;
            return staging.skipsTombstones ? null : "a tombstone";
        }
        byte[] value = record.getBinary(VALUE);
        bytes += value.length;
        if (staging.folder == null && bytes > HELD_BYTES) {
            return "more than is held in memory";
        }
        InternalRow found = staging.records.scanned(value);
        if (found == null) {
            found = staging.records.parsed(value);
        }
        if (found == null) {
            return "a record that is not ordinary";
        }
        String unfit = taken(((GenericInternalRow) found).values());
        if (unfit != null) {
            return unfit;
        }
        if (row.length > staging.fields + 1) {
            row[staging.fields + 3] = new Long(record.getLong(OFFSET));
        }
        write();
        return null;
    }

    /** Takes the columns over; or says why not. */
    private String taken(Object[] found) {
        if (found[staging.fields] != null) {
            return "fields that the schema does not name";
        }
        for (int i = 0; i < staging.fields; i++) {
            Object value = found[i];
            if (value != null) {
                if (kinds[i] == Plain.TEXT && hasNul((UTF8String) value)) {
                    return "a value that not every store takes";
                }
            }
            row[i] = value;
        }
        for (int i = 0; i < staging.needed.length; i++) {
            if (row[staging.needed[i]] == null) {
                return "no value where one is needed";
            }
        }
        return null;
    }

    private static boolean hasNul(UTF8String text) {
        int size = text.numBytes();
        Object base = text.getBaseObject();
        long at = text.getBaseOffset();
        int i = 0;
        for (; i <= size - 8; i += 8) {
            long eight = Platform.getLong(base, at + i);
            if ((eight - ONES & ~eight & HIGHS) != 0) {
                return true;
            }
        }
        for (; i < size; i++) {
            if (Platform.getByte(base, at + i) == 0) {
                return true;
            }
        }
        return false;
    }

    private void write() throws IOException {
        if (writer == null) {
            writer = new StagedFile(begun(), staging.written, conf);
        }
        if (staging.hashed.length > 0) {
            long hash = Plain.hash(row, staging.hashed, kinds);
            low += hash & HALF;
            high += hash >>> 32;
            xor ^= hash;
        }
        writer.put(row, staging.places, whole(), staging.text < 0 ? null : text(row[staging.text]));
        written++;
    }

    /** What is made of all of a row; null where a row is columns alone. */
    private Object whole() {
        if (staging.document == null) {
            return null;
        }
        if (document == null) {
            document = new RowDocument(staging.rows, staging.document, staging.json);
        }
        return document.of(row);
    }

    /** The bytes of a text, or of a number's digits. */
    private static byte[] text(Object value) {
        return value == null ? null : UTF8String.fromString(value.toString()).getBytes();
    }

    private OutputFile begun() throws IOException {
        if (staging.folder == null) {
            held = new HeldFile();
            return held;
        }
        file = "part-" + TaskContext.getPartitionId() + "-" + UUID.randomUUID() + ".parquet";
        return HadoopOutputFile.fromPath(new Path(staging.folder, file), conf);
    }

    /** For Spark's own pages. */
    private void tell(TaskMetrics metrics) {
        metrics.inputMetrics().incRecordsRead(records);
        metrics.inputMetrics().incBytesRead(bytes + keyBytes);
        metrics.outputMetrics().setRecordsWritten(written);
    }

    public Object get() {
        return new GenericInternalRow(new Object[] {
            UTF8String.fromString(why), UTF8String.fromString(file),
            held == null || why != null ? null : held.bytes(),
            new Long(written), new Long(records), new Long(bytes), new Long(keyBytes), new Long(skipped),
            new Long(low), new Long(high), new Long(xor)
        });
    }

    public void close() throws IOException {
        if (writer != null) {
            writer.close();
        }
    }
}
