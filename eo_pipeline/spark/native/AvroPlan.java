package eo.pipeline;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.JsonProperties;
import org.apache.avro.LogicalType;
import org.apache.avro.Schema;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How records of a writer's schema become columns of a reader's, as Spark's from_avro makes them, if
 * each field is the same in both, is left out, or is null: see {@link #of}.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class AvroPlan extends Plan {
    private static final int DEPTH_MOST = 30;

    // kinds of steps
    private static final int BOOLEAN = 0;
    private static final int INT = 1;
    private static final int LONG = 2;
    private static final int INT_AS_LONG = 3;
    private static final int MILLIS = 4;
    private static final int FLOAT = 5;
    private static final int DOUBLE = 6;
    private static final int TEXT = 7;
    private static final int BYTES = 8;
    private static final int FIXED = 9;
    private static final int ENUM = 10;
    private static final int ARRAY = 11;
    private static final int RECORD = 12;

    private final Step record;
    private final ArrayData unknown;

    private AvroPlan(Step record, ArrayData unknown) {
        this.record = record;
        this.unknown = unknown;
    }

    /**
     * Null if a record may need more: other names, aliases, defaults that are not null, promotions
     * but of int to long, maps, decimals, unions of more than null and one type. "unknown": the names of
     * the writer's fields that are left out; null if there are none.
     */
    static AvroPlan of(String writer, String reader, ArrayData unknown, int columns) {
        Step made;
        try {
            made = step(new Schema.Parser().parse(writer), new Schema.Parser().parse(reader), 0);
        } catch (AvroRuntimeException refused) {
            return null; // by this release of Avro; its records are judged
        }
        boolean fits = made != null && made.kind == RECORD && !made.takesNull && made.width == columns;
        return fits ? new AvroPlan(made, unknown) : null;
    }

    Object[] values() {
        Object[] values = new Object[record.width + 1];
        fields(record, values);
        if (at != in.length) {
            throw ODD;
        }
        values[record.width] = unknown;
        return values;
    }

    private static Step step(Schema writer, Schema reader, int depth) {
        if (depth > DEPTH_MOST) {
            return null;
        }
        Step step = new Step();
        Schema written = writer;
        Schema read = reader;
        if (writer.getType() == Schema.Type.UNION) {
            step.nullAt = nullOf(writer);
            if (step.nullAt < 0) {
                return null;
            }
            written = (Schema) writer.getTypes().get(1 - step.nullAt);
        }
        if (reader.getType() == Schema.Type.UNION) {
            int nullAt = nullOf(reader);
            if (nullAt < 0) {
                return null;
            }
            step.takesNull = true;
            read = (Schema) reader.getTypes().get(1 - nullAt);
        }
        step.kind = kind(written, read);
        if (step.kind < 0 || step.kind == ENUM && !written.getEnumSymbols().equals(read.getEnumSymbols())) {
            return null;
        }
        if (step.kind == ENUM) {
            List symbols = written.getEnumSymbols();
            step.symbols = new UTF8String[symbols.size()];
            for (int i = 0; i < step.symbols.length; i++) {
                step.symbols[i] = UTF8String.fromString((String) symbols.get(i));
            }
        }
        if (step.kind == FIXED) {
            step.width = written.getFixedSize();
        }
        if (step.kind == ARRAY) {
            Step item = step(written.getElementType(), read.getElementType(), depth + 1);
            step.parts = new Step[] {item};
            return item == null ? null : step;
        }
        return step.kind == RECORD ? ofRecord(step, written, read, depth) : step;
    }

    /** The place of null in a union with one other type; else -1. */
    private static int nullOf(Schema union) {
        List types = union.getTypes();
        if (types.size() != 2) {
            return -1;
        }
        boolean isFirst = ((Schema) types.get(0)).getType() == Schema.Type.NULL;
        boolean isSecond = ((Schema) types.get(1)).getType() == Schema.Type.NULL;
        return isFirst == isSecond ? -1 : isFirst ? 0 : 1;
    }

    private static Step ofRecord(Step step, Schema written, Schema read, int depth) {
        List fields = written.getFields();
        ArrayList parts = new ArrayList();
        for (int i = 0; i < fields.size(); i++) {
            Schema.Field field = (Schema.Field) fields.get(i);
            Schema.Field column = read.getField(field.name());
            Schema as = column == null ? field.schema() : column.schema();
            Step part = step(field.schema(), as, depth + 1);
            if (part == null) {
                return null;
            }
            part.place = column == null ? -1 : column.pos();
            parts.add(part);
        }
        List columns = read.getFields();
        for (int i = 0; i < columns.size(); i++) {
            Schema.Field column = (Schema.Field) columns.get(i);
            boolean isThere = written.getField(column.name()) != null;
            if (!column.aliases().isEmpty()
                    || !isThere && column.defaultVal() != JsonProperties.NULL_VALUE) {
                return null;
            }
        }
        step.width = columns.size();
        step.parts = (Step[]) parts.toArray(new Step[0]);
        return step;
    }

    /** The kind of a value that both schemas describe alike; -1: they do not, or it is another one. */
    private static int kind(Schema writer, Schema reader) {
        String logical = logical(writer);
        if (!logical.equals(logical(reader))) {
            return -1;
        }
        Schema.Type type = writer.getType();
        boolean isSame = type == reader.getType();
        if (type == Schema.Type.INT) {
            if (!isSame) {
                return logical.length() == 0 && reader.getType() == Schema.Type.LONG ? INT_AS_LONG : -1;
            }
            return logical.length() == 0 || logical.equals("date") ? INT : -1;
        }
        if (!isSame) {
            return -1;
        }
        if (type == Schema.Type.LONG) {
            if (logical.equals("timestamp-millis")) {
                return MILLIS;
            }
            return logical.length() == 0 || logical.equals("timestamp-micros") ? LONG : -1;
        }
        if (logical.length() > 0) {
            return -1;
        }
        if (type == Schema.Type.RECORD || type == Schema.Type.ENUM || type == Schema.Type.FIXED) {
            boolean isNamedSo = writer.getFullName().equals(reader.getFullName())
                && reader.getAliases().isEmpty();
            if (!isNamedSo) {
                return -1;
            }
        }
        if (type == Schema.Type.FIXED) {
            return writer.getFixedSize() == reader.getFixedSize() ? FIXED : -1;
        }
        Schema.Type[] types = {
            Schema.Type.BOOLEAN, Schema.Type.FLOAT, Schema.Type.DOUBLE, Schema.Type.STRING,
            Schema.Type.BYTES, Schema.Type.ENUM, Schema.Type.ARRAY, Schema.Type.RECORD};
        int[] kinds = {BOOLEAN, FLOAT, DOUBLE, TEXT, BYTES, ENUM, ARRAY, RECORD};
        int found = Arrays.asList(types).indexOf(type);
        return found < 0 ? -1 : kinds[found];
    }

    /** Also of a name that Avro does not know. */
    private static String logical(Schema schema) {
        LogicalType known = schema.getLogicalType();
        String named = known == null ? schema.getProp("logicalType") : known.getName();
        return named == null ? "" : named;
    }

    private void fields(Step step, Object[] row) {
        Step[] parts = step.parts;
        for (int i = 0; i < parts.length; i++) {
            Object value = value(parts[i]);
            if (parts[i].place >= 0) {
                row[parts[i].place] = value;
            }
        }
    }

    private Object value(Step step) {
        if (step.nullAt >= 0) {
            long branch = zigzag();
            if (branch == step.nullAt) {
                if (step.takesNull) {
                    return null;
                }
                throw ODD;
            }
            if (branch != 1 - step.nullAt) {
                throw ODD;
            }
        }
        switch (step.kind) {
            case BOOLEAN:
                int bit = in[moved(1, in.length)];
                if (bit >> 1 != 0) {
                    throw ODD;
                }
                return Boolean.valueOf(bit == 1);
            case INT:
                return new Integer(small());
            case LONG:
                return new Long(zigzag());
            case INT_AS_LONG:
                return new Long(small());
            case MILLIS:
                long millis = zigzag();
                if (millis > Long.MAX_VALUE / 1000 || millis < Long.MIN_VALUE / 1000) {
                    throw ODD;
                }
                return new Long(millis * 1000);
            case FLOAT:
                return new Float(Float.intBitsToFloat((int) little(4, in.length)));
            case DOUBLE:
                return new Double(Double.longBitsToDouble(little(8, in.length)));
            case TEXT:
                int length = length();
                return UTF8String.fromBytes(in, moved(length, in.length), length);
            case BYTES:
                return bytes(length());
            case FIXED:
                return bytes(step.width);
            case ENUM:
                int symbol = small();
                if (symbol < 0 || symbol >= step.symbols.length) {
                    throw ODD;
                }
                return step.symbols[symbol];
            case ARRAY:
                return array(step.parts[0]);
            default:
                Object[] row = new Object[step.width];
                fields(step, row);
                return new GenericInternalRow(row);
        }
    }

    private ArrayData array(Step item) {
        ArrayList items = new ArrayList();
        for (long many = zigzag(); many != 0; many = zigzag()) {
            if (many < 0) {
                many = -many;
                zigzag(); // the block's bytes
            }
            // an item takes a byte at least
            if (many < 0 || many > in.length - at) {
                throw ODD;
            }
            for (; many > 0; many--) {
                items.add(value(item));
            }
        }
        return new GenericArrayData(items.toArray());
    }

    private byte[] bytes(int length) {
        int from = moved(length, in.length);
        return Arrays.copyOfRange(in, from, from + length);
    }

    private int length() {
        long length = zigzag();
        if (length < 0 || length > in.length - at) {
            throw ODD;
        }
        return (int) length;
    }

    private int small() {
        long value = zigzag();
        if ((int) value != value) {
            throw ODD;
        }
        return (int) value;
    }

    private long zigzag() {
        long value = number(in.length);
        return value >>> 1 ^ -(value & 1);
    }

    /** How one value is read. */
    private static final class Step {
        int kind;

        /** Among the columns; -1: it is left out. */
        int place;

        /** The place of null in the writer's union; -1: it is none. */
        int nullAt = -1;

        /** Whether the column may be null. */
        boolean takesNull;

        /** Columns of a record, bytes of a fixed value. */
        int width;
        Step[] parts;
        UTF8String[] symbols;
    }
}
