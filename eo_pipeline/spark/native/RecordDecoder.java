package eo.pipeline;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.TreeSet;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Takes records one after the other, and counts them. An ordinary one is read by {@link
 * Ordinary}, and its key by {@link OrdinaryKey}; any other one is what the {@link Judge} says.
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
    private static final int SCHEMAS = 6;

    private final Decoding decoding;
    private final DataType[] types;

    /** Of each table whose records these are; null: it wants none. */
    private final ArrayList letters = new ArrayList();
    private final MetSchemas[] schemas;

    private long looked;
    private long records;
    private long bytes;
    private long keyBytes;
    private long good;
    private long bad;
    private long skipped;
    private long judged;
    private long unknown;
    private UTF8String firstBad;
    private String why;
    private boolean isJudged;
    private final TreeSet names = new TreeSet();

    RecordDecoder(Decoding decoding) {
        this.decoding = decoding;
        types = new DataType[decoding.columns.size()];
        for (int i = 0; i < types.length; i++) {
            types[i] = decoding.columns.apply(i).dataType();
        }
        schemas = new MetSchemas[decoding.schemas];
        for (int i = 0; i < schemas.length; i++) {
            schemas[i] = new MetSchemas(SCHEMAS + 2 * i);
        }
        alsoFor(decoding.letters);
    }

    /** There are dead letters of one more table. */
    void alsoFor(DeadLetters wanted) {
        letters.add(wanted == null ? null : new DeadLetters.File(wanted));
    }

    /**
     * The columns of a record, which is good; null of any other one, of one that is not to be read,
     * and where {@link #why} says so.
     */
    Object[] taken(InternalRow record) throws IOException {
        isJudged = false;
        if ((looked++ & OFTEN) == 0) {
            TaskContext.get().killTaskIfInterrupted();
        }
        if (decoding.where != null && !decoding.where.of(record).getBoolean(0)) {
            return null;
        }
        records++;
        if (!record.isNullAt(KafkaRanges.KEY)) {
            keyBytes += record.getBinary(KafkaRanges.KEY).length;
        }
        if (record.isNullAt(KafkaRanges.VALUE)) {
            if (decoding.skipsTombstones) {
                skipped++;
                return null;
            }
            return judged(record);
        }
        if (decoding.ordinary == null) {
            bytes += record.getBinary(KafkaRanges.VALUE).length;
            return judged(record);
        }
        byte[] value = record.getBinary(KafkaRanges.VALUE);
        bytes += value.length;
        Object[] values = decoding.ordinary.values(value, record);
        Object[] key = values == null || decoding.key == null ? null : decoding.key.of(record);
        if (values == null || decoding.key != null && key == null) {
            return judged(record);
        }
        Object more = values[decoding.fields];
        Object moreOfKey = key == null ? null : key[key.length - 1];
        if (more != null || moreOfKey != null) {
            if (decoding.failsUnknown) {
                return judged(record);
            }
            unknown++;
            note(more, "");
            note(moreOfKey, "key: ");
        }
        if (decoding.written != null && schemas.length > 0) {
            schemas[0].wrote(decoding.written.writer());
        }
        good++;
        return key == null ? values : both(values, key);
    }

    private Object[] both(Object[] values, Object[] key) {
        Object[] all = new Object[types.length];
        System.arraycopy(values, 0, all, 0, decoding.fields);
        System.arraycopy(key, 0, all, decoding.fields, key.length - 1);
        return all;
    }

    private Object[] judged(InternalRow record) throws IOException {
        if (decoding.judge == null) {
            why = "a record that is not ordinary";
            return null;
        }
        isJudged = true;
        judged++;
        boolean isOdd = decoding.ordinary != null;
        InternalRow said = isOdd ? decoding.judge.ofOdd(record) : decoding.judge.of(record);
        for (int i = 0; i < schemas.length; i++) {
            schemas[i].met(said);
        }
        if (!said.isNullAt(ERROR)) {
            bad++;
            UTF8String shown = said.getUTF8String(SHOWN);
            if (firstBad == null || shown.binaryCompare(firstBad) < 0) {
                firstBad = shown.copy();
            }
            for (int i = 0; i < letters.size(); i++) {
                if (letters.get(i) != null) {
                    ((DeadLetters.File) letters.get(i)).put(said, LETTER, HASH);
                }
            }
            return null;
        }
        good++;
        if (!said.isNullAt(UNKNOWN)) {
            unknown++;
            note(said.getArray(UNKNOWN), "");
        }
        InternalRow row = said.getStruct(ROW, types.length);
        Object[] values = new Object[types.length];
        for (int i = 0; i < values.length; i++) {
            values[i] = RowFile.value(row, i, types[i]);
        }
        return values;
    }

    private void note(Object more, String before) {
        ArrayData found = (ArrayData) more;
        for (int i = 0; found != null && i < found.numElements(); i++) {
            String name = before + found.getUTF8String(i);
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
        for (int i = 0; i < letters.size(); i++) {
            if (letters.get(i) != null) {
                ((DeadLetters.File) letters.get(i)).close();
            }
        }
        letters.clear();
    }

    /** What was counted, by name, with the first dead letters; there is no more. */
    HashMap counted() throws IOException {
        return counted(0);
    }

    /** The same with the dead letters "number". */
    HashMap counted(int number) throws IOException {
        HashMap counted = new HashMap();
        counted.put("why", why);
        counted.put("records", new Long(records));
        counted.put("bytes", new Long(bytes));
        counted.put("key_bytes", new Long(keyBytes));
        counted.put("good", new Long(good));
        counted.put("bad", new Long(bad));
        counted.put("skipped", new Long(skipped));
        counted.put("judged", new Long(judged));
        counted.put("unknown", new Long(unknown));
        counted.put("unknown_fields", new ArrayList(names));
        counted.put("first_bad", firstBad == null ? null : firstBad.toString());
        ArrayList met = new ArrayList();
        for (int i = 0; i < schemas.length; i++) {
            met.add(schemas[i].counted());
        }
        counted.put("schemas", met);
        if (letters.get(number) != null) {
            ((DeadLetters.File) letters.get(number)).finish(counted);
        }
        return counted;
    }
}
