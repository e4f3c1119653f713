package eo.pipeline;

import java.util.Arrays;
import org.apache.parquet.bytes.BytesInput;
import org.apache.spark.unsafe.Platform;

/** Bytes that grow; numbers are little-endian, as Parquet has them. */
final class PlainBuffer {
    private static final boolean IS_LITTLE =
        java.nio.ByteOrder.nativeOrder() == java.nio.ByteOrder.LITTLE_ENDIAN;
    private static final int SLAB = 1 << 12;

    private byte[] bytes = new byte[SLAB];
    private int size;
    private int bits;

    private long room(int more) {
        if (size + more > bytes.length) {
            bytes = Arrays.copyOf(bytes, Math.max(2 * bytes.length, size + more));
        }
        long at = Platform.BYTE_ARRAY_OFFSET + size;
        size += more;
        return at;
    }

    void putInt(int value) {
        long at = room(4); // which may be in other bytes than those before
        Platform.putInt(bytes, at, IS_LITTLE ? value : Integer.reverseBytes(value));
    }

    void putLong(long value) {
        long at = room(8);
        Platform.putLong(bytes, at, IS_LITTLE ? value : Long.reverseBytes(value));
    }

    void putBytes(Object base, long offset, int length) {
        long at = room(length);
        Platform.copyMemory(base, offset, bytes, at, length);
    }

    /** Eight of them are a byte, the first its lowest. */
    void putBit(boolean value) {
        if (bits++ % 8 == 0) {
            bytes[(int) (room(1) - Platform.BYTE_ARRAY_OFFSET)] = 0;
        }
        if (value) {
            bytes[size - 1] |= 1 << (bits - 1) % 8;
        }
    }

    int size() {
        return size;
    }

    BytesInput bytes() {
        return BytesInput.from(bytes, 0, size);
    }

    void clear() {
        size = 0;
        bits = 0;
    }
}
