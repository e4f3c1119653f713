package eo.pipeline;

import java.math.BigInteger;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.BinaryType;
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
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A row as PostgreSQL's binary COPY has it (its manual, "COPY", "Binary Format", "Tuples"): the number
 * of fields in two bytes, then each field's length in four, or -1 for null, and its value as the
 * type's own receiving function reads it.
 *
 * Nothing is kept from row to row: Spark may call one function from several threads.
 */
public class CopyRow implements ScalarFunction {
    private static final int BOOLEAN = 0;
    private static final int BYTE = 1;
    private static final int SHORT = 2;
    private static final int INT = 3;
    private static final int LONG = 4;
    private static final int FLOAT = 5;
    private static final int DOUBLE = 6;
    private static final int TEXT = 7;
    private static final int BYTES = 8;
    private static final int DATE = 9;
    private static final int TIMESTAMP = 10;
    private static final int JSON = 11;
    private static final int NUMERIC = 12;

    /** What each kind is for Spark; JSON is a struct of one field, its text. */
    private static final Class[] TYPES = {
        BooleanType.class, ByteType.class, ShortType.class, IntegerType.class, LongType.class,
        FloatType.class, DoubleType.class, StringType.class, BinaryType.class, DateType.class,
        TimestampType.class, StructType.class, DecimalType.class
    };

    /** What each kind takes, in bytes; nothing is said of those whose values differ. */
    private static final int[] SIZES = {1, 2, 2, 4, 8, 4, 8, 0, 0, 4, 8, 0, 0};

    /** PostgreSQL counts from 2000-01-01. */
    private static final int EPOCH_DAYS = 10957;
    private static final long EPOCH_MICROS = EPOCH_DAYS * 86400000000L;
    private static final byte JSONB_VERSION = 1;

    /** PostgreSQL's numbers have digits of base 10,000, each of four of ours. */
    private static final int OURS = 4;
    private static final BigInteger BASE = BigInteger.valueOf(10000);
    private static final int NUMERIC_HEAD = 8;
    private static final short POSITIVE = 0;
    private static final short NEGATIVE = 0x4000;

    private final StructType columns;
    private final int[] kinds;

    /** Of rows with these columns, each of a type that {@link #kind} knows. */
    CopyRow(StructType columns) {
        this.columns = columns;
        StructField[] fields = columns.fields();
        this.kinds = new int[fields.length];
        for (int i = 0; i < fields.length; i++) {
            kinds[i] = kind(fields[i].dataType());
        }
    }

    private static int kind(DataType type) {
        for (int kind = 0; kind < TYPES.length; kind++) {
            if (TYPES[kind].isInstance(type)) {
                return kind;
            }
        }
        if (type instanceof TimestampNTZType) {
            return TIMESTAMP;
        }
        throw new IllegalArgumentException("no column of " + type.simpleString());
    }

    public DataType[] inputTypes() {
        return new DataType[] {columns};
    }

    public DataType resultType() {
        return DataTypes.BinaryType;
    }

    public boolean isResultNullable() {
        return false;
    }

    public String name() {
        return "copy_row";
    }

    public String canonicalName() {
        return "eo.pipeline.copy_row." + columns.json();
    }

    /** The row's bytes. Spark calls this by its name. */
    public byte[] invoke(InternalRow row) {
        short[][] numbers = numbers(row);
        byte[] copy = new byte[length(row, numbers)];
        long at = putShort(copy, Platform.BYTE_ARRAY_OFFSET, (short) kinds.length);
        for (int i = 0; i < kinds.length; i++) {
            at = row.isNullAt(i) ? putInt(copy, at, -1) : put(copy, at, row, i, numbers);
        }
        return copy;
    }

    /** Of each decimal its digits as PostgreSQL has them, the first first; null if no column has any. */
    private short[][] numbers(InternalRow row) {
        short[][] numbers = null;
        for (int i = 0; i < kinds.length; i++) {
            if (kinds[i] == NUMERIC && !row.isNullAt(i)) {
                numbers = numbers == null ? new short[kinds.length][] : numbers;
                numbers[i] = digits(decimal(row, i));
            }
        }
        return numbers;
    }

    private Decimal decimal(InternalRow row, int i) {
        DecimalType type = (DecimalType) columns.fields()[i].dataType();
        return row.getDecimal(i, type.precision(), type.scale());
    }

    private static short[] digits(Decimal number) {
        BigInteger left = number.toJavaBigDecimal().unscaledValue().abs();
        left = left.multiply(BigInteger.TEN.pow(OURS * groups(number.scale()) - number.scale()));
        int count = 0;
        for (BigInteger rest = left; rest.signum() != 0; rest = rest.divide(BASE)) {
            count++;
        }
        short[] digits = new short[count];
        for (int i = count - 1; i >= 0; i--) {
            BigInteger[] both = left.divideAndRemainder(BASE);
            digits[i] = both[1].shortValue();
            left = both[0];
        }
        return digits;
    }

    /** Digits of PostgreSQL's that so many of ours take. */
    private static int groups(int ours) {
        return (ours + OURS - 1) / OURS;
    }

    private int length(InternalRow row, short[][] numbers) {
        int length = 2 + 4 * kinds.length;
        for (int i = 0; i < kinds.length; i++) {
            if (row.isNullAt(i)) {
                continue;
            }
            if (kinds[i] == TEXT) {
                length += row.getUTF8String(i).numBytes();
            } else if (kinds[i] == BYTES) {
                length += row.getBinary(i).length;
            } else if (kinds[i] == JSON) {
                UTF8String text = json(row, i);
                length += text == null ? 0 : 1 + text.numBytes();
            } else if (kinds[i] == NUMERIC) {
                length += NUMERIC_HEAD + 2 * numbers[i].length;
            } else {
                length += SIZES[kinds[i]];
            }
        }
        return length;
    }

    private long put(byte[] copy, long at, InternalRow row, int i, short[][] numbers) {
        int kind = kinds[i];
        if (kind == TEXT) {
            return putText(copy, at, row.getUTF8String(i));
        }
        if (kind == BYTES) {
            return putBytes(copy, at, row.getBinary(i));
        }
        if (kind == JSON) {
            return putJson(copy, at, json(row, i));
        }
        if (kind == NUMERIC) {
            return putNumber(copy, at, decimal(row, i), numbers[i]);
        }
        at = putInt(copy, at, SIZES[kind]);
        switch (kind) {
            case LONG:
                return putLong(copy, at, row.getLong(i));
            case INT:
                return putInt(copy, at, row.getInt(i));
            case DOUBLE:
                return putLong(copy, at, Double.doubleToRawLongBits(row.getDouble(i)));
            case TIMESTAMP:
                return putLong(copy, at, micros(row.getLong(i)));
            case DATE:
                return putInt(copy, at, days(row.getInt(i)));
            case FLOAT:
                return putInt(copy, at, Float.floatToRawIntBits(row.getFloat(i)));
            case SHORT:
                return putShort(copy, at, row.getShort(i));
            case BYTE:
                return putShort(copy, at, row.getByte(i));
            default:
                Platform.putByte(copy, at, (byte) (row.getBoolean(i) ? 1 : 0));
                return at + 1;
        }
    }

    /** Since PostgreSQL's epoch; what would not fit becomes what PostgreSQL refuses. */
    private static long micros(long sinceSparks) {
        long since = sinceSparks - EPOCH_MICROS;
        return since > sinceSparks ? Long.MIN_VALUE + 1 : since;
    }

    private static int days(int sinceSparks) {
        int since = sinceSparks - EPOCH_DAYS;
        return since > sinceSparks ? Integer.MIN_VALUE + 1 : since;
    }

    private static UTF8String json(InternalRow row, int i) {
        InternalRow held = row.getStruct(i, 1);
        return held.isNullAt(0) ? null : held.getUTF8String(0);
    }

    private static long putJson(byte[] copy, long at, UTF8String text) {
        if (text == null) {
            return putInt(copy, at, -1);
        }
        at = putInt(copy, at, 1 + text.numBytes());
        Platform.putByte(copy, at, JSONB_VERSION);
        text.writeToMemory(copy, at + 1);
        return at + 1 + text.numBytes();
    }

    /** The manual does not tell this form; numeric_recv in PostgreSQL's numeric.c does. */
    private static long putNumber(byte[] copy, long at, Decimal number, short[] digits) {
        int weight = digits.length == 0 ? 0 : digits.length - groups(number.scale()) - 1;
        at = putInt(copy, at, NUMERIC_HEAD + 2 * digits.length);
        at = putShort(copy, at, (short) digits.length);
        at = putShort(copy, at, (short) weight);
        at = putShort(copy, at, number.toJavaBigDecimal().signum() < 0 ? NEGATIVE : POSITIVE);
        at = putShort(copy, at, (short) number.scale());
        for (int i = 0; i < digits.length; i++) {
            at = putShort(copy, at, digits[i]);
        }
        return at;
    }

    private static long putText(byte[] copy, long at, UTF8String text) {
        at = putInt(copy, at, text.numBytes());
        text.writeToMemory(copy, at);
        return at + text.numBytes();
    }

    private static long putBytes(byte[] copy, long at, byte[] value) {
        at = putInt(copy, at, value.length);
        Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET, copy, at, value.length);
        return at + value.length;
    }

    private static long putShort(byte[] copy, long at, short value) {
        Platform.putShort(copy, at, Short.reverseBytes(value));
        return at + 2;
    }

    private static long putInt(byte[] copy, long at, int value) {
        Platform.putInt(copy, at, Integer.reverseBytes(value));
        return at + 4;
    }

    private static long putLong(byte[] copy, long at, long value) {
        Platform.putLong(copy, at, Long.reverseBytes(value));
        return at + 8;
    }
}
