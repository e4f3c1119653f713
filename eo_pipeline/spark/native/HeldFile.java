package eo.pipeline;

import java.io.ByteArrayOutputStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** A file in memory, for what is so little that it is told and not stored. */
final class HeldFile extends StreamFile {
    static final long MOST_BYTES = 64L << 20;
    static final String TOO_MUCH = "more than is held in memory";

    private final ByteArrayOutputStream held;

    HeldFile() {
        this(new ByteArrayOutputStream());
    }

    private HeldFile(ByteArrayOutputStream held) {
        super(held);
        this.held = held;
    }

    /** Bytes of a row, at least. */
    static long size(InternalRow row) {
        return row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : 8L * row.numFields();
    }

    byte[] bytes() {
        return held.toByteArray();
    }
}
