package eo.pipeline;

import java.util.Arrays;
import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.io.api.Binary;
import org.apache.parquet.schema.PrimitiveType;
import org.apache.parquet.schema.PrimitiveType.PrimitiveTypeName;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How values of one type, in Spark's own terms, stand in a Parquet file, and which of those of a page
 * is the least and the greatest; as Spark writes them.
 */
abstract class PlainValues {
    /** What a column of "type" holds, which Spark has "stored" so. */
    static PlainValues of(DataType type, PrimitiveType stored) {
        PlainValues made = of(Plain.kind(type), stored);
        if (made.name() != stored.getPrimitiveTypeName()) {
            throw new IllegalStateException("not stored here: " + type + " as " + stored);
        }
        return made;
    }

    private static PlainValues of(int kind, PrimitiveType stored) {
        switch (kind) {
            case Plain.TEXT:
                return new Texts();
            case Plain.LONG:
                return new Longs();
            case Plain.INT:
            case Plain.DATE:
                return new Ints();
            case Plain.DOUBLE:
                return new Doubles();
            case Plain.FLOAT:
                return new Floats();
            case Plain.BOOLEAN:
                return new Truths();
            case Plain.BYTES:
                return new Bytes();
            default:
                if (stored.getPrimitiveTypeName() == PrimitiveTypeName.INT32) {
                    return new ShortDecimals();
                }
                return stored.getPrimitiveTypeName() == PrimitiveTypeName.INT64
                    ? (PlainValues) new Decimals() : new LongDecimals(stored.getTypeLength());
        }
    }

    /** Of the type in the file. */
    abstract PrimitiveTypeName name();

    abstract void put(Object value, PlainBuffer out);

    /** Bytes that {@link #put} takes. */
    abstract int length(Object value);

    /** The value, which next to nothing else of its record is kept for. */
    Object kept(Object value) {
        return value;
    }

    /** Whether a dictionary may be worth it. */
    boolean comesAgain() {
        return true;
    }

    /** Takes the value into account for {@link #tell}. */
    abstract void bound(Object value);

    /** The least and the greatest, of which there is one. */
    abstract void tell(Statistics statistics);

    /** Another page begins. */
    abstract void forget();

    /** What has a number of 64 bits. */
    abstract static class Whole extends PlainValues {
        PrimitiveTypeName name() {
            return isLong() ? PrimitiveTypeName.INT64 : PrimitiveTypeName.INT32;
        }

        private long least = Long.MAX_VALUE;
        private long greatest = Long.MIN_VALUE;

        abstract long of(Object value);

        abstract boolean isLong();

        void put(Object value, PlainBuffer out) {
            if (isLong()) {
                out.putLong(of(value));
            } else {
                out.putInt((int) of(value));
            }
        }

        int length(Object value) {
            return isLong() ? 8 : 4;
        }

        void bound(Object value) {
            long number = of(value);
            least = Math.min(least, number);
            greatest = Math.max(greatest, number);
        }

        void tell(Statistics statistics) {
            if (isLong()) {
                statistics.updateStats(least);
                statistics.updateStats(greatest);
            } else {
                statistics.updateStats((int) least);
                statistics.updateStats((int) greatest);
            }
        }

        void forget() {
            least = Long.MAX_VALUE;
            greatest = Long.MIN_VALUE;
        }
    }

    static class Longs extends Whole {
        long of(Object value) {
            return ((Long) value).longValue();
        }

        boolean isLong() {
            return true;
        }
    }

    static class Ints extends Whole {
        long of(Object value) {
            return ((Number) value).longValue();
        }

        boolean isLong() {
            return false;
        }
    }

    static class Decimals extends Whole {
        long of(Object value) {
            return ((Decimal) value).toUnscaledLong();
        }

        boolean isLong() {
            return true;
        }
    }

    static class ShortDecimals extends Decimals {
        boolean isLong() {
            return false;
        }
    }

    static class Truths extends Whole {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.BOOLEAN;
        }

        private boolean anyTrue;
        private boolean anyFalse;

        long of(Object value) {
            return ((Boolean) value).booleanValue() ? 1 : 0;
        }

        boolean isLong() {
            return false;
        }

        void put(Object value, PlainBuffer out) {
            out.putBit(((Boolean) value).booleanValue());
        }

        boolean comesAgain() {
            return false; // a bit is shorter than any
        }

        void bound(Object value) {
            boolean isTrue = ((Boolean) value).booleanValue();
            anyTrue |= isTrue;
            anyFalse |= !isTrue;
        }

        void tell(Statistics statistics) {
            statistics.updateStats(!anyFalse);
            statistics.updateStats(anyTrue);
        }

        void forget() {
            anyTrue = false;
            anyFalse = false;
        }
    }

    /** In the order of Double.compare, which is the library's: 0.0 is greater than -0.0. */
    abstract static class Real extends PlainValues {
        private boolean isAny;
        private double least;
        private double greatest;

        void bound(Object value) {
            double number = ((Number) value).doubleValue();
            if (!isAny || Double.compare(number, least) < 0) {
                least = number;
            }
            if (!isAny || Double.compare(number, greatest) > 0) {
                greatest = number;
            }
            isAny = true;
        }

        double least() {
            return least;
        }

        double greatest() {
            return greatest;
        }

        void forget() {
            isAny = false;
        }
    }

    static class Doubles extends Real {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.DOUBLE;
        }

        void put(Object value, PlainBuffer out) {
            out.putLong(Double.doubleToRawLongBits(((Double) value).doubleValue()));
        }

        int length(Object value) {
            return 8;
        }

        void tell(Statistics statistics) {
            statistics.updateStats(least());
            statistics.updateStats(greatest());
        }
    }

    static class Floats extends Real {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.FLOAT;
        }

        void put(Object value, PlainBuffer out) {
            out.putInt(Float.floatToRawIntBits(((Float) value).floatValue()));
        }

        int length(Object value) {
            return 4;
        }

        void tell(Statistics statistics) {
            statistics.updateStats((float) least());
            statistics.updateStats((float) greatest());
        }
    }

    static class Texts extends PlainValues {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.BINARY;
        }

        private UTF8String least;
        private UTF8String greatest;

        void put(Object value, PlainBuffer out) {
            UTF8String text = (UTF8String) value;
            out.putInt(text.numBytes());
            out.putBytes(text.getBaseObject(), text.getBaseOffset(), text.numBytes());
        }

        int length(Object value) {
            return 4 + ((UTF8String) value).numBytes();
        }

        Object kept(Object value) {
            return ((UTF8String) value).copy();
        }

        void bound(Object value) {
            UTF8String text = (UTF8String) value;
            if (least == null || text.binaryCompare(least) < 0) {
                least = text.copy();
            }
            if (greatest == null || text.binaryCompare(greatest) > 0) {
                greatest = text.copy();
            }
        }

        void tell(Statistics statistics) {
            statistics.updateStats(Binary.fromConstantByteArray(least.getBytes()));
            statistics.updateStats(Binary.fromConstantByteArray(greatest.getBytes()));
        }

        void forget() {
            least = null;
            greatest = null;
        }
    }

    /** Texts as bytes: no two are the same, and nobody asks for the least. */
    static class Bytes extends PlainValues {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.BINARY;
        }

        void put(Object value, PlainBuffer out) {
            byte[] bytes = (byte[]) value;
            out.putInt(bytes.length);
            out.putBytes(bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
        }

        int length(Object value) {
            return 4 + ((byte[]) value).length;
        }

        boolean comesAgain() {
            return false;
        }

        void bound(Object value) {
            throw new IllegalStateException("bytes have no bounds here");
        }

        void tell(Statistics statistics) {
            throw new IllegalStateException("bytes have no bounds here");
        }

        void forget() {
        }
    }

    static class LongDecimals extends PlainValues {
        PrimitiveTypeName name() {
            return PrimitiveTypeName.FIXED_LEN_BYTE_ARRAY;
        }

        private final int width;
        private Decimal least;
        private Decimal greatest;

        LongDecimals(int width) {
            this.width = width;
        }

        void put(Object value, PlainBuffer out) {
            out.putBytes(fixed((Decimal) value), Platform.BYTE_ARRAY_OFFSET, width);
        }

        int length(Object value) {
            return width;
        }

        void bound(Object value) {
            Decimal number = (Decimal) value;
            if (least == null || number.compare(least) < 0) {
                least = number;
            }
            if (greatest == null || number.compare(greatest) > 0) {
                greatest = number;
            }
        }

        void tell(Statistics statistics) {
            statistics.updateStats(Binary.fromConstantByteArray(fixed(least)));
            statistics.updateStats(Binary.fromConstantByteArray(fixed(greatest)));
        }

        void forget() {
            least = null;
            greatest = null;
        }

        private byte[] fixed(Decimal value) {
            byte[] shortest = value.toJavaBigDecimal().unscaledValue().toByteArray();
            byte[] all = new byte[width];
            Arrays.fill(all, shortest[0] < 0 ? (byte) -1 : (byte) 0);
            System.arraycopy(shortest, 0, all, width - shortest.length, shortest.length);
            return all;
        }
    }
}
