package eo.pipeline;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import java.time.DateTimeException;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JsonToStructs;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.immutable.Map;

/**
 * Reads JSON records in which there is nothing to judge, in one pass: the "row", and the names of its
 * "unknown" fields, if there are any. Of any other record the row is null, and there are its "marked"
 * text and the "leaves" in it, as eo_pipeline/batch/decode_json.py makes them of a record: by them it
 * is judged.
 *
 * An ordinary record is good by all of the pipeline's rules, and its values are what these make of
 * it. Whatever is not sure must be judged: another token than the type's usual one, a field that is
 * there twice, one in a struct that the schema does not name, a missing one that is required,
 * anything after the object, half a character, a time or a number that would not stay what it is.
 */
public class OrdinaryJson implements ScalarFunction, Ordinary {
    private static final JsonFactory FACTORY = JsonFactory.builder().build();
    static final int EARLIEST_YEAR = 1600;
    static final long MICROS_OF_A_DAY = 86400000000L;
    private static final int DIGITS_OF_EXPONENT = 3;

    private final String told;
    private final StructType leaves;
    private final StructType result;
    private final Shape shape;
    private final Pattern[] marks;
    private final String[] marked;
    private transient JsonToStructs reader;

    /**
     * "told", by line: the schema; that of its leaves, of which the last is from_json's column for
     * corrupt records; and the patterns that mark a text, each with what takes its place.
     */
    OrdinaryJson(String told) {
        String[] lines = told.split("\n");
        StructType wanted = (StructType) DataType.fromJson(lines[0]);
        this.told = told;
        this.leaves = (StructType) DataType.fromJson(lines[1]);
        this.result = new StructType()
            .add("row", wanted.asNullable(), true)
            .add("unknown", DataTypes.createArrayType(DataTypes.StringType, true), true)
            .add("leaves", leaves, true)
            .add("marked", DataTypes.StringType, true);
        this.shape = new Shape(wanted, wanted.size() + 1, wanted.size());
        int many = lines.length / 2 - 1;
        this.marks = new Pattern[many];
        this.marked = new String[many];
        for (int i = 0; i < many; i++) {
            marks[i] = Pattern.compile(lines[2 + 2 * i]);
            marked[i] = lines[3 + 2 * i];
        }
    }

    public DataType[] inputTypes() {
        return new DataType[] {DataTypes.BinaryType};
    }

    public DataType resultType() {
        return result;
    }

    public String name() {
        return "ordinary_json";
    }

    public String canonicalName() {
        return "eo.pipeline.ordinary_json." + told;
    }

    /** What {@link #resultType} has; never null. Spark calls this by its name. */
    public InternalRow invoke(byte[] value) {
        InternalRow row = value == null ? null : read(value);
        if (row == null) {
            return judged(value);
        }
        Object unknown = row.isNullAt(shape.unknown) ? null : row.getArray(shape.unknown);
        return new GenericInternalRow(new Object[] {row, unknown, null, null});
    }

    /** The record, and behind it the names of its unknown fields; null if it must be judged. */
    InternalRow read(byte[] value) {
        InternalRow row = scanned(value);
        return row == null ? parsed(value) : row;
    }

    public Object[] values(byte[] value, InternalRow record) {
        InternalRow found = read(value);
        return found == null ? null : ((GenericInternalRow) found).values();
    }

    /** As {@link #read}; null if the scanner gives up. */
    public InternalRow scanned(byte[] value) {
        return OrdinaryScanner.record(value, shape);
    }

    private InternalRow judged(byte[] value) {
        Object[] row = new Object[result.size()];
        if (value != null) {
            UTF8String text = UTF8String.fromString(marked(UTF8String.fromBytes(value).toString()));
            row[2] = read(text);
            row[3] = text;
        }
        return new GenericInternalRow(row);
    }

    private String marked(String text) {
        for (int i = 0; i < marks.length; i++) {
            text = marks[i].matcher(text).replaceAll(marked[i]);
        }
        return text;
    }

    private Object read(UTF8String text) {
        if (reader == null) {
            Map options = new Map.Map3(
                "mode", "PERMISSIVE", "columnNameOfCorruptRecord", leaves.fieldNames()[leaves.size() - 1],
                "allowSingleQuotes", "false");
            Expression column = new BoundReference(0, DataTypes.StringType, true);
            reader = new JsonToStructs(leaves, options, column, Option.apply("UTC"), false);
        }
        return reader.eval(new GenericInternalRow(new Object[] {text}));
    }

    /** As {@link #scanned}; null if it must be judged. */
    public InternalRow parsed(byte[] value) {
        // after a zero the parser would take it for UTF-16
        if (value.length < 2 || value[0] != '{' || value[value.length - 1] != '}' || value[1] == 0) {
            return null;
        }
        int all = 0;
        boolean escapes = false;
        for (int i = 0; i < value.length; i++) {
            all |= value[i];
            escapes |= value[i] == '\\';
        }
        if (all < 0 && !UTF8String.fromBytes(value).isValid()) {
            return null;
        }
        try {
            JsonParser parser = FACTORY.createParser(value);
            try {
                parser.nextToken();
                InternalRow row = struct(parser, shape, escapes);
                return row == null || parser.nextToken() != null ? null : row;
            } finally {
                parser.close(); // gives its buffers back
            }
        } catch (IOException notOrdinary) {
            return null;
        } catch (RuntimeException notOrdinary) { // of a number's conversion, say
            return null;
        }
    }

    /** The object that has just begun; null: not ordinary. */
    private static InternalRow struct(JsonParser parser, Shape shape, boolean escapes)
            throws IOException {
        Object[] row = new Object[shape.width];
        boolean[] seen = new boolean[shape.names.length];
        LinkedHashSet unknown = null;
        int next = 0;
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            int field = shape.find(parser.currentName(), next);
            if (field < 0) {
                if (unknown == null) {
                    unknown = new LinkedHashSet();
                }
                // of a value that nobody reads nobody would see half a character
                if (escapes || shape.unknown < 0 || !unknown.add(parser.currentName())) {
                    return null;
                }
                parser.nextToken();
                parser.skipChildren();
                continue;
            }
            if (seen[field]) {
                return null;
            }
            seen[field] = true;
            next = field + 1;
            JsonToken token = parser.nextToken();
            if (token == JsonToken.VALUE_NULL) {
                if (shape.required[field]) {
                    return null;
                }
                continue;
            }
            Object found = shape.kinds[field].read(parser, token, escapes);
            if (found == null) {
                return null;
            }
            row[field] = found;
        }
        if (parser.currentToken() != JsonToken.END_OBJECT) {
            return null;
        }
        if (!shape.hasAll(seen)) {
            return null;
        }
        if (unknown != null) {
            row[shape.unknown] = texts(unknown);
        }
        return new GenericInternalRow(row);
    }

    private static GenericArrayData texts(LinkedHashSet names) {
        Object[] found = names.toArray();
        for (int i = 0; i < found.length; i++) {
            found[i] = UTF8String.fromString((String) found[i]);
        }
        return new GenericArrayData(found);
    }

    /**
     * The fields of a struct. "width" is more than they are where more columns follow them, one of
     * them for the names of "unknown" fields; less than zero: there may be none.
     */
    static class Shape implements java.io.Serializable {
        final String[] names;
        final byte[][] quoted;
        final boolean[] required;
        private final int[] needed;
        final Kind[] kinds;
        final int width;
        final int unknown;
        private final HashMap places = new HashMap();

        Shape(StructType wanted, int width, int unknown) {
            StructField[] fields = wanted.fields();
            this.width = width;
            this.unknown = unknown;
            names = new String[fields.length];
            quoted = new byte[fields.length][];
            required = new boolean[fields.length];
            kinds = new Kind[fields.length];
            for (int i = 0; i < fields.length; i++) {
                names[i] = fields[i].name();
                quoted[i] = OrdinaryScanner.quoted(names[i]);
                required[i] = !fields[i].nullable();
                kinds[i] = kindOf(fields[i].dataType());
                places.put(names[i], new Integer(i));
            }
            needed = placesOf(required);
            if (places.size() < names.length) {
                Arrays.fill(quoted, null); // which of those with one name is meant is said below
            }
        }

        private static int[] placesOf(boolean[] chosen) {
            int[] found = new int[chosen.length];
            int many = 0;
            for (int i = 0; i < chosen.length; i++) {
                if (chosen[i]) {
                    found[many++] = i;
                }
            }
            return Arrays.copyOf(found, many);
        }

        /** The place of the field "name", most likely "next"; -1: there is none. */
        int find(String name, int next) {
            if (next < names.length && names[next].equals(name)) {
                return next;
            }
            Integer place = (Integer) places.get(name);
            return place == null ? -1 : place.intValue();
        }

        /** Whether of those that are "seen" none is missing that is required. */
        boolean hasAll(boolean[] seen) {
            for (int i = 0; i < needed.length; i++) {
                if (!seen[needed[i]]) {
                    return false;
                }
            }
            return true;
        }
    }

    private static Kind kindOf(DataType type) {
        if (type instanceof StringType) return new Text();
        if (type instanceof LongType) return new Whole(64);
        if (type instanceof IntegerType) return new Whole(32);
        if (type instanceof ShortType) return new Whole(16);
        if (type instanceof ByteType) return new Whole(8);
        if (type instanceof DoubleType) return new Real(false);
        if (type instanceof FloatType) return new Real(true);
        if (type instanceof BooleanType) return new Truth();
        if (type instanceof DecimalType) return new Exact((DecimalType) type);
        if (type instanceof DateType) return new Day();
        if (type instanceof TimestampType) return new Moment();
        if (type instanceof StructType) return new Nested((StructType) type);
        if (type instanceof ArrayType) return new Listed((ArrayType) type);
        if (type instanceof MapType) return new Mapped((MapType) type);
        throw new IllegalArgumentException("not read here: " + type);
    }

    /** How values of one type are read. */
    abstract static class Kind implements java.io.Serializable {
        /** What "token", which is not null, stands for, in Spark's own terms; null: not ordinary. */
        abstract Object read(JsonParser parser, JsonToken token, boolean escapes)
            throws IOException;

        /** The same of the value that is next "in" a record; null: the scanner gives up. */
        abstract Object scan(OrdinaryScanner in);
    }

    static class Text extends Kind {
        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_STRING) {
                return null;
            }
            String text = parser.getText();
            return escapes && hasHalves(text) ? null : UTF8String.fromString(text);
        }

        Object scan(OrdinaryScanner in) {
            return in.text();
        }
    }

    /** Whether half a character is alone, as only an escaped one can be. */
    private static boolean hasHalves(String text) {
        for (int i = 0; i < text.length(); i++) {
            if (Character.isSurrogate(text.charAt(i))) {
                boolean whole = i + 1 < text.length()
                    && Character.isSurrogatePair(text.charAt(i), text.charAt(i + 1));
                if (!whole) {
                    return true;
                }
                i++;
            }
        }
        return false;
    }

    static class Whole extends Kind {
        private final int bits;

        Whole(int bits) {
            this.bits = bits;
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_NUMBER_INT) {
                return null;
            }
            return of(parser.getLongValue());
        }

        Object scan(OrdinaryScanner in) {
            return in.number() && in.isLong() ? of(in.asLong()) : null;
        }

        private Object of(long value) {
            if (bits == 64) {
                return new Long(value);
            }
            long limit = (1L << bits - 1) - 1;
            if (value > limit || value < -limit - 1) {
                return null;
            }
            if (bits == 32) {
                return new Integer((int) value);
            }
            return bits == 16 ? (Object) new Short((short) value) : (Object) new Byte((byte) value);
        }
    }

    /** A finite number; one that overflows is none. */
    static class Real extends Kind {
        private final boolean single;

        Real(boolean single) {
            this.single = single;
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_NUMBER_INT && token != JsonToken.VALUE_NUMBER_FLOAT) {
                return null;
            }
            // the parser's own conversion knows no -0 without a point
            String text = parser.getText();
            return single ? of(Float.parseFloat(text)) : of(Double.parseDouble(text));
        }

        private static Object of(float value) {
            return Float.isInfinite(value) ? null : (Object) new Float(value);
        }

        private static Object of(double value) {
            return Double.isInfinite(value) ? null : (Object) new Double(value);
        }

        Object scan(OrdinaryScanner in) {
            if (!in.number()) {
                return null;
            }
            return single ? of(in.asFloat()) : of(in.asDouble());
        }
    }

    static class Truth extends Kind {
        Object read(JsonParser parser, JsonToken token, boolean escapes) {
            if (token == JsonToken.VALUE_TRUE) {
                return Boolean.TRUE;
            }
            return token == JsonToken.VALUE_FALSE ? Boolean.FALSE : null;
        }

        Object scan(OrdinaryScanner in) {
            return in.truth();
        }
    }

    /** A decimal number that fits without being rounded. */
    static class Exact extends Kind {
        private final int precision;
        private final int before;
        private final int behind;

        Exact(DecimalType type) {
            precision = type.precision();
            before = precision - type.scale();
            behind = type.scale();
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_NUMBER_INT && token != JsonToken.VALUE_NUMBER_FLOAT) {
                return null;
            }
            String text = parser.getText();
            int mark = Math.max(text.lastIndexOf('e'), text.lastIndexOf('E'));
            // one more for its sign
            boolean isFar = mark >= 0 && text.length() - mark - 1 > DIGITS_OF_EXPONENT + 1;
            return isFar ? null : of(new BigDecimal(text));
        }

        Object scan(OrdinaryScanner in) {
            BigDecimal value = in.number() ? in.asDecimal() : null;
            return value == null ? null : of(value);
        }

        private Object of(BigDecimal value) {
            boolean fits = value.scale() <= behind
                && (long) value.precision() - value.scale() <= before;
            return fits ? Decimal.apply(value, precision, behind) : null;
        }
    }

    /** As ISO 8601 writes it: 2026-01-31. */
    static class Day extends Kind {
        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_STRING) {
                return null;
            }
            return of(parser.getText());
        }

        Object scan(OrdinaryScanner in) {
            UTF8String text = in.text();
            return text == null ? null : of(text.toString());
        }

        private Object of(String text) {
            long day = text.length() == 10 ? day(text) : Long.MIN_VALUE;
            return day == Long.MIN_VALUE ? null : (Object) new Integer((int) day);
        }
    }

    /** As ISO 8601 writes it, in UTC, of at most microseconds: 2026-01-31T08:30:00.125Z. */
    static class Moment extends Kind {
        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.VALUE_STRING) {
                return null;
            }
            return of(parser.getText());
        }

        Object scan(OrdinaryScanner in) {
            UTF8String text = in.text();
            return text == null ? null : of(text.toString());
        }

        private Object of(String text) {
            int end = text.length() - 1;
            if (end < 19 || end > 26 || end == 20 || text.charAt(end) != 'Z' || text.charAt(10) != 'T') {
                return null;
            }
            long day = day(text);
            int hour = number(text, 11, 13);
            int minute = number(text, 14, 16);
            int second = number(text, 17, 19);
            int fraction = end == 19 ? 0 : number(text, 20, end);
            boolean marked = text.charAt(13) == ':' && text.charAt(16) == ':'
                && (end == 19 || text.charAt(19) == '.');
            boolean told = hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && second >= 0
                && second < 60 && fraction >= 0;
            if (day == Long.MIN_VALUE || !marked || !told) {
                return null;
            }
            for (int digits = end - 20; end > 19 && digits < 6; digits++) {
                fraction *= 10;
            }
            long seconds = (hour * 60 + minute) * 60 + second;
            return new Long(day * MICROS_OF_A_DAY + seconds * 1000000L + fraction);
        }
    }

    /** Days since 1970 of the date that "text" begins with; the least number: it is none. */
    private static long day(String text) {
        int year = number(text, 0, 4);
        int month = number(text, 5, 7);
        int day = number(text, 8, 10);
        if (text.charAt(4) != '-' || text.charAt(7) != '-' || year < EARLIEST_YEAR) {
            return Long.MIN_VALUE;
        }
        if (month < 1 || month > 12 || day < 1 || day > 31) {
            return Long.MIN_VALUE;
        }
        try {
            return LocalDate.of(year, month, day).toEpochDay();
        } catch (DateTimeException noSuchDay) {
            return Long.MIN_VALUE;
        }
    }

    /** What the digits from "begin" to "end", not included, stand for; -1: they are not digits. */
    private static int number(String text, int begin, int end) {
        int value = 0;
        for (int i = begin; i < end; i++) {
            char digit = text.charAt(i);
            if (digit < '0' || digit > '9') {
                return -1;
            }
            value = value * 10 + digit - '0';
        }
        return value;
    }

    static class Nested extends Kind {
        private final Shape shape;

        Nested(StructType type) {
            shape = new Shape(type, type.size(), -1);
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            return token == JsonToken.START_OBJECT ? struct(parser, shape, escapes) : null;
        }

        Object scan(OrdinaryScanner in) {
            return in.struct(shape);
        }
    }

    static class Listed extends Kind {
        private final Kind element;
        private final boolean nullable;

        Listed(ArrayType type) {
            element = kindOf(type.elementType());
            nullable = type.containsNull();
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.START_ARRAY) {
                return null;
            }
            ArrayList values = new ArrayList();
            JsonToken each = parser.nextToken();
            while (each != JsonToken.END_ARRAY) {
                Object value = orNull(parser, each, element, escapes);
                if (value == null && !(nullable && each == JsonToken.VALUE_NULL)) {
                    return null;
                }
                values.add(value);
                each = parser.nextToken();
            }
            return new GenericArrayData(values.toArray());
        }

        Object scan(OrdinaryScanner in) {
            if (!in.is('[')) {
                return null;
            }
            ArrayList values = new ArrayList();
            for (boolean more = !in.is(']'); more; more = in.isMore(']')) {
                values.add(in.value(element, nullable));
            }
            return in.isGivenUp() ? null : new GenericArrayData(values.toArray());
        }
    }

    /** Of keys that are there once. */
    static class Mapped extends Kind {
        private final Kind held;
        private final boolean nullable;

        Mapped(MapType type) {
            held = kindOf(type.valueType());
            nullable = type.valueContainsNull();
        }

        Object read(JsonParser parser, JsonToken token, boolean escapes) throws IOException {
            if (token != JsonToken.START_OBJECT) {
                return null;
            }
            LinkedHashMap found = new LinkedHashMap();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                JsonToken each = parser.nextToken();
                Object value = orNull(parser, each, held, escapes);
                if (value == null && !(nullable && each == JsonToken.VALUE_NULL)) {
                    return null;
                }
                UTF8String key = UTF8String.fromString(name);
                if (found.containsKey(key) || (escapes && hasHalves(name))) {
                    return null;
                }
                found.put(key, value);
            }
            return of(found);
        }

        Object scan(OrdinaryScanner in) {
            if (!in.is('{')) {
                return null;
            }
            LinkedHashMap found = new LinkedHashMap();
            for (boolean more = !in.is('}'); more; more = in.isMore('}')) {
                UTF8String key = in.key();
                if (key == null || found.containsKey(key)) {
                    return null;
                }
                found.put(key, in.value(held, nullable));
            }
            return in.isGivenUp() ? null : of(found);
        }

        private static Object of(LinkedHashMap found) {
            return new ArrayBasedMapData(
                new GenericArrayData(found.keySet().toArray()),
                new GenericArrayData(found.values().toArray()));
        }
    }

    private static Object orNull(JsonParser parser, JsonToken token, Kind kind, boolean escapes)
            throws IOException {
        // an end of the record in its middle is an error of the parser's
        return token == JsonToken.VALUE_NULL ? null : kind.read(parser, token, escapes);
    }
}
