package eo.pipeline;

import java.io.IOException;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;

/** A file in memory, for what is so little that it is told and not stored. */
final class HeldFile implements OutputFile {
    static final long MOST_BYTES = 64L << 20;
    static final String TOO_MUCH = "more than is held in memory";

    private final Held held = new Held();

    /** Bytes of a row, at least. */
    static long size(InternalRow row) {
        return row instanceof UnsafeRow ? ((UnsafeRow) row).getSizeInBytes() : 8L * row.numFields();
    }

    byte[] bytes() {
        return held.bytes.toByteArray();
    }

    public PositionOutputStream create(long blockSizeHint) {
        return held;
    }

    public PositionOutputStream createOrOverwrite(long blockSizeHint) {
        return held;
    }

    public boolean supportsBlockSize() {
        return false;
    }

    public long defaultBlockSize() {
        return 0;
    }

    public String getPath() {
        return "held";
    }

    static class Held extends PositionOutputStream {
        final java.io.ByteArrayOutputStream bytes = new java.io.ByteArrayOutputStream();

        public long getPos() {
            return bytes.size();
        }

        public void write(int one) {
            bytes.write(one);
        }

        public void write(byte[] some, int from, int many) throws IOException {
            bytes.write(some, from, many);
        }
    }
}
