package eo.pipeline;

import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.ExternalAppendOnlyUnsafeRowArray;

/**
 * Rows of several kinds that a task holds until the plans of its tables read them: in Spark's memory,
 * and on disk if that is short. All kinds are held together, since each of them would take a page of
 * the memory, and with more kinds than pages every row could be spilled.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class HeldRows {
    /** Rows that are objects of their own, of whatever size; more of them are in pages. */
    private static final int OBJECTS = 256;

    private final ExternalAppendOnlyUnsafeRowArray rows =
        new ExternalAppendOnlyUnsafeRowArray(OBJECTS, Integer.MAX_VALUE);

    /** The kind of each row, in the rows' order. */
    private int[] kinds = new int[OBJECTS];

    void put(int kind, UnsafeRow row) {
        if (rows.length() == kinds.length) {
            kinds = Arrays.copyOf(kinds, 2 * kinds.length);
        }
        kinds[rows.length()] = kind;
        rows.add(row);
    }

    void close() {
        rows.clear();
    }

    /** Reads the rows of a kind, which have so many columns, from the first one. */
    PartitionReader reader(int kind, int columns) {
        return new Reader(rows.generateIterator(), kinds, kind, columns);
    }

    static class Reader implements PartitionReader {
        private final scala.collection.Iterator rows;
        private final int[] kinds;
        private final int kind;
        private final UnsafeRow row;
        private int next;

        Reader(scala.collection.Iterator rows, int[] kinds, int kind, int columns) {
            this.rows = rows;
            this.kinds = kinds;
            this.kind = kind;
            row = new UnsafeRow(columns);
        }

        public boolean next() {
            while (rows.hasNext()) {
                UnsafeRow found = (UnsafeRow) rows.next();
                if (kinds[next++] == kind) {
                    row.pointTo(found.getBaseObject(), found.getBaseOffset(), found.getSizeInBytes());
                    return true;
                }
            }
            return false;
        }

        public Object get() {
            return row;
        }

        public void close() {
            // the task closes what it holds
        }
    }
}
