package eo.pipeline;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.TreeSet;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Takes records one after the other, and counts them. An ordinary one is read by {@link
 * OrdinaryJson}; any other one is what the {@link Judge} says of it.
 *
 * For one task: it keeps what it counts.
 */
final class RecordDecoder {
    private static final int OFTEN = 1023;

    // as eo_pipeline/batch/unknown_fields.py has them
    private static final int NAMES_MAX = 20;
    private static final int NAME_CHARACTERS_MAX = 100;

    // what a judge says
    private static final int ROW = 0;
    private static final int UNKNOWN = 1;
    private static final int ERROR = 2;
    private static final int SHOWN = 3;
    private static final int LETTER = 4;
    private static final int HASH = 5;

    private final Decoding decoding;
    private final StructType columns;
    private final DeadLetters.File letters;

    private long records;
    private long bytes;
    private long keyBytes;
    private long good;
    private long bad;
    private long skipped;
    private long unknown;
    private UTF8String firstBad;
    private String why;
    private boolean isJudged;
    private final TreeSet names = new TreeSet();

    RecordDecoder(Decoding decoding) {
        this.decoding = decoding;
        columns = decoding.columns;
        letters = decoding.letters == null ? null : new DeadLetters.File(decoding.letters);
    }

    /** The columns of a record, which is good; null of any other one, and where {@link #why} says so. */
    Object[] taken(InternalRow record) throws IOException {
        isJudged = false;
        if ((records++ & OFTEN) == 0) {
            TaskContext.get().killTaskIfInterrupted();
        }
        if (!record.isNullAt(KafkaRanges.KEY)) {
            keyBytes += record.getUTF8String(KafkaRanges.KEY).numBytes();
        }
        if (record.isNullAt(KafkaRanges.VALUE)) {
            if (decoding.skipsTombstones) {
                skipped++;
                return null;
            }
            return judged(record);
        }
        byte[] value = record.getBinary(KafkaRanges.VALUE);
        bytes += value.length;
        InternalRow found = null;
        if (decoding.ordinary != null) {
            found = decoding.ordinary.scanned(value);
            if (found == null) {
                found = decoding.ordinary.parsed(value);
            }
        }
        if (found == null) {
            return judged(record);
        }
        Object[] values = ((GenericInternalRow) found).values();
        Object more = values[columns.size()];
        if (more != null) {
            if (decoding.failsUnknown) {
                return judged(record);
            }
            note((ArrayData) more);
        }
        good++;
        return values;
    }

    private Object[] judged(InternalRow record) throws IOException {
        if (decoding.judge == null) {
            why = "a record that is not ordinary";
            return null;
        }
        isJudged = true;
        InternalRow said = decoding.judge.of(record);
        if (!said.isNullAt(ERROR)) {
            bad++;
            UTF8String shown = said.getUTF8String(SHOWN);
            if (firstBad == null || shown.binaryCompare(firstBad) < 0) {
                firstBad = shown.copy();
            }
            if (letters != null) {
                StructType of = decoding.letters.columns();
                letters.put(said.getStruct(LETTER, of.size() - 1), said.getLong(HASH));
            }
            return null;
        }
        good++;
        if (!said.isNullAt(UNKNOWN)) {
            note(said.getArray(UNKNOWN));
        }
        InternalRow row = said.getStruct(ROW, columns.size());
        Object[] values = new Object[columns.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = RowFile.value(row, i, columns.apply(i).dataType());
        }
        return values;
    }

    private void note(ArrayData more) {
        unknown++;
        for (int i = 0; i < more.numElements(); i++) {
            String name = more.getUTF8String(i).toString();
            boolean isLong = name.codePointCount(0, name.length()) > NAME_CHARACTERS_MAX;
            names.add(isLong ? name.substring(0, name.offsetByCodePoints(0, NAME_CHARACTERS_MAX)) : name);
            if (names.size() > NAMES_MAX) {
                names.remove(names.last());
            }
        }
    }

    /** Why nothing of this counts: there is no judge, and a record needs one; else null. */
    String why() {
        return why;
    }

    /** Whether the last record was judged. */
    boolean isJudged() {
        return isJudged;
    }

    /** Bytes of the values so far. */
    long bytes() {
        return bytes;
    }

    void close() throws IOException {
        if (letters != null) {
            letters.close();
        }
    }

    /** What was counted, by name; there is no more. */
    HashMap counted() throws IOException {
        HashMap counted = new HashMap();
        counted.put("why", why);
        counted.put("records", new Long(records));
        counted.put("bytes", new Long(bytes));
        counted.put("key_bytes", new Long(keyBytes));
        counted.put("good", new Long(good));
        counted.put("bad", new Long(bad));
        counted.put("skipped", new Long(skipped));
        counted.put("unknown", new Long(unknown));
        counted.put("unknown_fields", new ArrayList(names));
        counted.put("first_bad", firstBad == null ? null : firstBad.toString());
        if (letters != null) {
            letters.finish(counted);
        }
        return counted;
    }
}
