package eo.pipeline;

import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** Values that have no parts: which kinds there are, what becomes of them, and their hash. */
final class Plain {
    static final int BOOLEAN = 0;
    static final int INT = 1;
    static final int LONG = 2;
    static final int FLOAT = 3;
    static final int DOUBLE = 4;
    static final int TEXT = 5;
    static final int BYTES = 6;
    static final int DECIMAL = 7;
    static final int DATE = 8;

    private static final int NONE = -1;
    private static final long SEED = 42L;
    private static final int DIGITS_OF_LONG = 18;

    private Plain() {
    }

    static boolean isPlain(DataType type) {
        return found(type) != NONE;
    }

    static int kind(DataType type) {
        int kind = found(type);
        if (kind == NONE) {
            throw new IllegalArgumentException("not staged here: " + type);
        }
        return kind;
    }

    private static int found(DataType type) {
        if (type instanceof StringType) return TEXT;
        if (type instanceof LongType || type instanceof TimestampType) return LONG;
        if (type instanceof DateType) return DATE;
        if (type instanceof IntegerType || type instanceof ShortType || type instanceof ByteType) return INT;
        if (type instanceof DoubleType) return DOUBLE;
        if (type instanceof FloatType) return FLOAT;
        if (type instanceof BooleanType) return BOOLEAN;
        if (type instanceof DecimalType) return DECIMAL;
        return type instanceof BinaryType ? BYTES : NONE;
    }

    /** What Spark's xxhash64 makes of a number and a value for each of the columns. */
    static long hash(Object[] row, int[] places, int[] kinds) {
        long hash = SEED;
        for (int i = 0; i < places.length; i++) {
            hash = XXH64.hashInt(i, hash);
            Object value = row[places[i]];
            if (value != null) {
                hash = hash(value, kinds[places[i]], hash);
            }
        }
        return hash;
    }

    private static long hash(Object value, int kind, long hash) {
        switch (kind) {
            case TEXT:
                UTF8String text = (UTF8String) value;
                return XXH64.hashUnsafeBytes(
                    text.getBaseObject(), text.getBaseOffset(), text.numBytes(), hash);
            case INT: // as a number of 64 bits
            case LONG:
                return XXH64.hashLong(((Number) value).longValue(), hash);
            case DATE:
                return XXH64.hashInt(((Integer) value).intValue(), hash);
            case DOUBLE:
                double real = ((Double) value).doubleValue();
                return XXH64.hashLong(Double.doubleToLongBits(real == 0 ? 0 : real), hash);
            case FLOAT:
                float single = ((Float) value).floatValue();
                return XXH64.hashInt(Float.floatToIntBits(single == 0 ? 0 : single), hash);
            case BOOLEAN:
                return XXH64.hashInt(((Boolean) value).booleanValue() ? 1 : 0, hash);
            case BYTES:
                byte[] raw = (byte[]) value;
                return XXH64.hashUnsafeBytes(raw, Platform.BYTE_ARRAY_OFFSET, raw.length, hash);
            default:
                Decimal number = (Decimal) value;
                if (number.precision() <= DIGITS_OF_LONG) {
                    return XXH64.hashLong(number.toUnscaledLong(), hash);
                }
                byte[] bytes = number.toJavaBigDecimal().unscaledValue().toByteArray();
                return XXH64.hashUnsafeBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length, hash);
        }
    }
}
