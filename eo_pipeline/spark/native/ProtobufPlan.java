package eo.pipeline;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How serialized Protobuf messages become columns, as eo_pipeline/batch/protobuf_worker.py makes them,
 * if no decoder could read them in another way: each field once, but repeated ones; one member of a
 * oneof; texts of UTF-8; numbers within their types; values of enums that have a name; times that
 * Protobuf allows.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class ProtobufPlan extends Plan {
    private static final GenericArrayData NONE = new GenericArrayData(new Object[0]);

    // kinds of values: FieldDescriptorProto.Type in google/protobuf/descriptor.proto
    private static final int DOUBLE = 1;
    private static final int FLOAT = 2;
    private static final int INT64 = 3;
    private static final int UINT64 = 4;
    private static final int INT32 = 5;
    private static final int FIXED64 = 6;
    private static final int FIXED32 = 7;
    private static final int BOOL = 8;
    private static final int STRING = 9;
    private static final int MESSAGE = 11;
    private static final int BYTES = 12;
    private static final int UINT32 = 13;
    private static final int ENUM = 14;
    private static final int SFIXED32 = 15;
    private static final int SFIXED64 = 16;
    private static final int SINT32 = 17;
    private static final int SINT64 = 18;

    // and messages that are one value, as eo_pipeline/batch/decode_protobuf.py numbers them
    private static final int TIMESTAMP = 19;
    private static final int DURATION = 20;
    private static final int WRAPPER = 21;

    // wire types (protobuf.dev, "Encoding", "Message Structure"), and of each kind its own
    private static final int VARINT = 0;
    private static final int EIGHT = 1;
    private static final int LENGTH = 2;
    private static final int FOUR = 5;
    private static final int[] WIRES = {
        -1, EIGHT, FOUR, VARINT, VARINT, VARINT, EIGHT, FOUR, VARINT, LENGTH, -1, LENGTH, LENGTH, VARINT,
        VARINT, FOUR, EIGHT, VARINT, VARINT, LENGTH, LENGTH, LENGTH};

    /** Bytes of the longest tag. */
    private static final int TAG = 5;

    // google/protobuf/timestamp.proto and duration.proto
    private static final long FIRST_SECOND = -62135596800L;
    private static final long LAST_SECOND = 253402300799L;
    private static final long LONGEST = 315576000000L;
    private static final int SECOND = 1000000000;

    private final Message message;
    private TreeSet unknown;

    /**
     * Of each message, in JSON: its "fields" in the order of the columns, and "left", the names of those
     * that are left out, by their numbers. Of each field: "number" and "kind"; "of", the kind of what is
     * wrapped; whether it is "many"; whether its "absence" is null; the number of its "oneof", or -1;
     * the names of an enum's "symbols" by their numbers; the "message" that it is.
     */
    ProtobufPlan(JsonNode told) {
        message = new Message(told);
    }

    Object[] values() {
        unknown = null;
        Object[] values = new Object[message.fields.length + 1];
        fields(message, values, in.length);
        if (unknown != null) {
            values[message.fields.length] = new GenericArrayData(unknown.toArray());
        }
        return values;
    }

    private void fields(Message of, Object[] row, int end) {
        while (at < end) {
            int from = at;
            long tag = number(end);
            int wire = (int) tag & 7;
            Field field = at - from > TAG ? null : of.field(tag >>> 3);
            if (field == null) {
                skip(of.left(tag >>> 3), wire, end);
            } else if (field.many) {
                many(field, row, wire, end);
            } else {
                if (row[field.place] != null || wire != WIRES[field.kind] || !of.isAlone(field, row)) {
                    throw ODD;
                }
                row[field.place] = value(field, end);
            }
        }
        if (at != end) {
            throw ODD;
        }
        for (int i = 0; i < of.fields.length; i++) {
            if (row[i] == null) {
                row[i] = of.fields[i].absent;
            } else if (of.fields[i].many) {
                row[i] = new GenericArrayData(((ArrayList) row[i]).toArray());
            }
        }
    }

    private void many(Field field, Object[] row, int wire, int end) {
        if (row[field.place] == null) {
            row[field.place] = new ArrayList();
        }
        ArrayList items = (ArrayList) row[field.place];
        if (wire == WIRES[field.kind]) {
            items.add(value(field, end));
            return;
        }
        if (wire != LENGTH) {
            throw ODD;
        }
        for (int last = last(end); at < last; ) {
            items.add(value(field, last));
        }
    }

    private void skip(UTF8String name, int wire, int end) {
        if (name == null) {
            throw ODD;
        }
        if (wire == VARINT) {
            number(end);
        } else if (wire == EIGHT) {
            moved(8, end);
        } else if (wire == FOUR) {
            moved(4, end);
        } else if (wire == LENGTH) {
            at = last(end);
        } else {
            throw ODD;
        }
        if (unknown == null) {
            unknown = new TreeSet();
        }
        unknown.add(name);
    }

    private Object value(Field field, int end) {
        if (WIRES[field.kind] != LENGTH) {
            Object value = scalar(field.kind, end);
            Object symbol = field.kind == ENUM ? field.symbols.get(value) : value;
            if (symbol == null) {
                throw ODD;
            }
            return symbol;
        }
        int last = last(end);
        switch (field.kind) {
            case STRING:
            case BYTES:
                return bytes(field.kind, last);
            case MESSAGE:
                Object[] inner = new Object[field.message.fields.length];
                fields(field.message, inner, last);
                return new GenericInternalRow(inner);
            case WRAPPER:
                return wrapped(field, last);
            default:
                return new Long(time(field.kind, last));
        }
    }

    private Object scalar(int kind, int end) {
        switch (kind) {
            case DOUBLE:
                return new Double(Double.longBitsToDouble(little(8, end)));
            case FLOAT:
                return new Float(Float.intBitsToFloat((int) little(4, end)));
            case INT64:
                return new Long(number(end));
            case SFIXED64:
                return new Long(little(8, end));
            case SINT64:
                long zigzag = number(end);
                return new Long(zigzag >>> 1 ^ -(zigzag & 1));
            case UINT64:
                return unsigned(number(end));
            case FIXED64:
                return unsigned(little(8, end));
            case SFIXED32:
                return new Integer((int) little(4, end));
            case SINT32:
                long small = positive(end);
                return new Integer((int) (small >>> 1 ^ -(small & 1)));
            case UINT32:
                return new Long(positive(end));
            case FIXED32:
                return new Long(little(4, end));
            case BOOL:
                long bit = number(end);
                if (bit >>> 1 != 0) {
                    throw ODD;
                }
                return Boolean.valueOf(bit == 1);
            default: // INT32, ENUM
                long value = number(end);
                if ((int) value != value) {
                    throw ODD;
                }
                return new Integer((int) value);
        }
    }

    private static Decimal unsigned(long value) {
        BigInteger whole = BigInteger.valueOf(value);
        if (value < 0) {
            whole = whole.add(BigInteger.ONE.shiftLeft(64));
        }
        return Decimal.apply(new BigDecimal(whole), 20, 0);
    }

    private Object bytes(int kind, int last) {
        int from = at;
        at = last;
        if (kind == BYTES) {
            return Arrays.copyOfRange(in, from, last);
        }
        UTF8String text = UTF8String.fromBytes(in, from, last - from);
        for (int i = from; i < last; i++) {
            if (in[i] < 0) {
                if (!text.isValid()) {
                    throw ODD;
                }
                return text;
            }
        }
        return text;
    }

    /** The value of the field number 1, once or not at all. */
    private Object wrapped(Field field, int last) {
        if (at == last) {
            return field.empty;
        }
        if (number(last) != (1 << 3 | WIRES[field.of])) {
            throw ODD;
        }
        boolean isScalar = WIRES[field.of] != LENGTH;
        Object value = isScalar ? scalar(field.of, last) : bytes(field.of, last(last));
        if (at != last) {
            throw ODD;
        }
        return value;
    }

    /** Microseconds of a message whose field 1 has seconds, and 2 nanoseconds. */
    private long time(int kind, int last) {
        long seconds = part(1, last);
        long nanos = part(2, last);
        boolean isTime = kind == TIMESTAMP;
        boolean isFar = isTime
            ? seconds < FIRST_SECOND || seconds > LAST_SECOND : seconds < 0 || seconds > LONGEST;
        if (isFar || nanos < 0 || nanos >= SECOND || at != last) {
            throw ODD;
        }
        return seconds * 1000000 + nanos / 1000;
    }

    /** The number of that field, which comes next or is not there. */
    private long part(int field, int last) {
        if (at == last || in[at] != field << 3) {
            return 0;
        }
        at++;
        return number(last);
    }

    /** Where the value ends whose length comes next. */
    private int last(int end) {
        long length = number(end);
        if (length < 0 || length > end - at) {
            throw ODD;
        }
        return at + (int) length;
    }

    private long positive(int end) {
        long value = number(end);
        if (value >>> 32 != 0) {
            throw ODD;
        }
        return value;
    }

    private static final class Message {
        final Field[] fields;
        private final HashMap left = new HashMap();
        private final HashMap byNumber = new HashMap();
        private final Field[] low;

        Message(JsonNode told) {
            JsonNode each = told.get("fields");
            fields = new Field[each.size()];
            low = new Field[128];
            for (int i = 0; i < fields.length; i++) {
                fields[i] = new Field((JsonNode) each.get(i), i);
                byNumber.put(new Long(fields[i].number), fields[i]);
                if (fields[i].number < low.length) {
                    low[fields[i].number] = fields[i];
                }
            }
            Iterator numbers = told.get("left").fieldNames();
            while (numbers.hasNext()) {
                String number = (String) numbers.next();
                left.put(Long.valueOf(number), UTF8String.fromString(told.get("left").get(number).asText()));
            }
        }

        Field field(long number) {
            return number < low.length ? low[(int) number] : (Field) byNumber.get(new Long(number));
        }

        UTF8String left(long number) {
            return (UTF8String) left.get(new Long(number));
        }

        /** Whether no other member of its oneof is there. */
        boolean isAlone(Field field, Object[] row) {
            for (int i = 0; field.oneof >= 0 && i < fields.length; i++) {
                if (fields[i].oneof == field.oneof && row[i] != null) {
                    return false;
                }
            }
            return true;
        }
    }

    private static final class Field {
        final int number;
        final int place;
        final int kind;

        /** The kind of what is wrapped. */
        final int of;
        final boolean many;
        final int oneof;

        /** What is in its column if it is not there. */
        final Object absent;

        /** The value of a wrapper without one. */
        final Object empty;
        final HashMap symbols = new HashMap();
        final Message message;

        Field(JsonNode told, int place) {
            this.place = place;
            number = told.get("number").asInt();
            kind = told.get("kind").asInt();
            of = told.get("of").asInt();
            many = told.get("many").asBoolean();
            oneof = told.get("oneof").asInt();
            message = kind == MESSAGE ? new Message(told.get("message")) : null;
            Iterator numbers = told.get("symbols").fieldNames();
            while (numbers.hasNext()) {
                String each = (String) numbers.next();
                symbols.put(Integer.valueOf(each), UTF8String.fromString(told.get("symbols").get(each).asText()));
            }
            empty = kind == WRAPPER ? zero(of) : null;
            boolean isNull = told.get("absence").asBoolean();
            absent = many ? NONE : isNull ? null : kind == ENUM ? symbols.get(new Integer(0)) : zero(kind);
        }

        private static Object zero(int kind) {
            switch (kind) {
                case DOUBLE:
                    return new Double(0);
                case FLOAT:
                    return new Float(0);
                case INT64:
                case SFIXED64:
                case SINT64:
                case UINT32:
                case FIXED32:
                    return new Long(0);
                case UINT64:
                case FIXED64:
                    return unsigned(0);
                case INT32:
                case SFIXED32:
                case SINT32:
                    return new Integer(0);
                case BOOL:
                    return Boolean.FALSE;
                case STRING:
                    return UTF8String.EMPTY_UTF8;
                case BYTES:
                    return new byte[0];
                default:
                    return null;
            }
        }
    }
}
