package eo.pipeline;

import java.io.IOException;
import java.util.HashMap;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.io.OutputFile;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Stages the good records of some ranges in one file, in one pass, and tells of them in one row;
 * which holds the file itself if there is no folder for it.
 *
 * It goes on as long as every good record makes a row that any store takes. At the first other one it
 * stops and says so, and nothing of it counts.
 */
class RangeStager implements PartitionReader {
    static final StructType TOLD = new StructType()
        .add("why", DataTypes.StringType)
        .add("file", DataTypes.StringType)
        .add("held", DataTypes.BinaryType)
        .add("part", DataTypes.StringType);

    private static final long FIRST_DAY =
        java.time.LocalDate.of(OrdinaryJson.EARLIEST_YEAR, 1, 1).toEpochDay();
    private static final long ONES = 0x0101010101010101L;
    private static final long HIGHS = ONES * 0x80;

    private final PartitionReaderFactory kafka;
    private final InputPartition[] ranges;
    private boolean isFirst;
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
    private final RecordDecoder decoder;
    private final int letters;
    private final Hashes hashes = new Hashes();
    private String part;

    RangeStager(PartitionReaderFactory kafka, InputPartition[] ranges, Staging staging) {
        this(kafka, ranges, staging, new RecordDecoder(staging.decoding), 0);
    }

    /** Stages what "decoder" decodes; "letters" is the number of the dead letters. */
    RangeStager(Staging staging, RecordDecoder decoder, int letters) {
        this(null, null, staging, decoder, letters);
    }

    private RangeStager(
            PartitionReaderFactory kafka, InputPartition[] ranges, Staging staging, RecordDecoder decoder,
            int letters) {
        this.kafka = kafka;
        this.ranges = ranges;
        this.staging = staging;
        conf = staging.conf.value();
        this.decoder = decoder;
        this.letters = letters;
        why = staging.why;
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
            finish();
        } finally {
            close();
        }
        return true;
    }

    private void stage(InputPartition range) throws IOException {
        PartitionReader reader = kafka.createReader(range);
        try {
            begin();
            while (why == null && reader.next()) {
                InternalRow record = (InternalRow) reader.get();
                put(record, decoder.taken(record));
            }
        } finally {
            reader.close();
        }
    }

    /** The next record is the first one of a range. */
    void begin() {
        isFirst = true;
    }

    /** Whether nothing is known yet for which nothing of this counts. */
    boolean goesOn() {
        return why == null;
    }

    /** Stages a record, which was decoded, unless nothing of this counts. */
    void put(InternalRow record, Object[] found) throws IOException {
        if (why != null) {
            return;
        }
        if (isFirst && row.length > staging.fields + 1) {
            row[staging.fields + 1] = record.getUTF8String(KafkaRanges.TOPIC).copy();
            row[staging.fields + 2] = new Integer(record.getInt(KafkaRanges.PARTITION));
        }
        isFirst = false;
        why = staged(record, found);
    }

    /** There are no more records. */
    void finish() throws IOException {
        if (writer != null) {
            writer.finish();
        }
        tell(TaskContext.get().taskMetrics());
    }

    /** Null, or why it is not staged here. */
    private String staged(InternalRow record, Object[] found) throws IOException {
        if (staging.folder == null && decoder.bytes() > HeldFile.MOST_BYTES) {
            return HeldFile.TOO_MUCH;
        }
        if (found == null) {
            return decoder.why();
        }
        if (row.length > staging.fields + 1) {
            row[staging.fields + 3] = new Long(record.getLong(KafkaRanges.OFFSET));
        }
        String unfit = taken(found);
        if (unfit != null) {
            return unfit;
        }
        write();
        return null;
    }

    /** Takes the columns over; or says why not. */
    private String taken(Object[] found) {
        for (int i = 0; i < staging.fields; i++) {
            Object value = found[i];
            if (value != null) {
                boolean isUnfit = kinds[i] == Plain.TEXT && hasNul((UTF8String) value)
                    || decoder.isJudged() && isFar(value, staging.rows.apply(i).dataType());
                if (isUnfit) {
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

    /** Whether a number is not finite, or a time before 1600: no ordinary record has such a value. */
    private static boolean isFar(Object value, DataType type) {
        if (type instanceof DateType) {
            return ((Integer) value).intValue() < FIRST_DAY;
        }
        if (type instanceof TimestampType) {
            return ((Long) value).longValue() < FIRST_DAY * OrdinaryJson.MICROS_OF_A_DAY;
        }
        if (type instanceof DoubleType || type instanceof FloatType) {
            double number = ((Number) value).doubleValue();
            return Double.isInfinite(number) || Double.isNaN(number);
        }
        return false;
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
        hashes.add(staging.hashed.length > 0 ? Plain.hash(row, staging.hashed, kinds) : 0);
        writer.put(row, staging.places, whole(), staging.text < 0 ? null : text(row[staging.text]));
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

    /** The bytes of a text, or of a number's digits; bytes as they are. */
    private static byte[] text(Object value) {
        if (value instanceof byte[]) {
            return (byte[]) value;
        }
        return value == null ? null : UTF8String.fromString(value.toString()).getBytes();
    }

    private OutputFile begun() throws IOException {
        if (staging.folder == null) {
            held = new HeldFile();
            return held;
        }
        file = "part-" + TaskContext.getPartitionId() + "-" + UUID.randomUUID() + ".parquet";
        return StreamFile.of(new Path(staging.folder, file), conf);
    }

    /** Spark's own pages, and who asked. */
    private void tell(TaskMetrics metrics) throws IOException {
        HashMap counted = decoder.counted(letters);
        metrics.inputMetrics().incRecordsRead(((Long) counted.get("records")).longValue());
        metrics.inputMetrics().incBytesRead(decoder.bytes());
        metrics.outputMetrics().setRecordsWritten(metrics.outputMetrics().recordsWritten() + hashes.rows());
        hashes.tell(counted);
        part = Totals.json(counted);
    }

    public Object get() {
        return new GenericInternalRow(new Object[] {
            UTF8String.fromString(why), UTF8String.fromString(file), bytes(), UTF8String.fromString(part)});
    }

    private byte[] bytes() {
        return held == null || why != null ? null : held.bytes();
    }

    /** What is told of table "number", see {@link SplitRanges}. */
    Object[] told(int number) {
        return new Object[] {new Integer(number), why, file, bytes(), part};
    }

    public void close() throws IOException {
        if (writer != null) {
            writer.close();
        }
        decoder.close();
    }
}
