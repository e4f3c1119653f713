package eo.pipeline;

import java.io.IOException;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.util.collection.unsafe.sort.UnsafeExternalSorter;
import org.apache.spark.util.collection.unsafe.sort.UnsafeSorterIterator;

/**
 * Rows of several kinds that a task holds until the plans of its tables read them: in Spark's memory,
 * and on disk if that is short. All kinds are held together, since each of them would take a page of
 * the memory, and with more kinds than pages every row could be spilled. They go when the task ends.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class HeldRows {
    private static final int FIRST = 1024;

    /** Pages of memory that the plans can have, of the sixteen or so that are a task's. */
    private static final int OF_PLANS = 4;

    private final TaskMemoryManager memory;

    /** It sorts nothing; the prefix of a row is its kind. */
    private final UnsafeExternalSorter rows;

    HeldRows() {
        TaskContext context = TaskContext.get();
        SparkEnv env = SparkEnv.get();
        memory = context.taskMemoryManager();
        rows = UnsafeExternalSorter.create(
            memory, env.blockManager(), env.serializerManager(), context, null, null, FIRST,
            memory.pageSizeBytes(), Integer.MAX_VALUE, false);
    }

    void put(int kind, UnsafeRow row) throws IOException {
        rows.insertRecord(
            row.getBaseObject(), row.getBaseOffset(), row.getSizeInBytes(), kind, false);
    }

    /** All rows are put. While they are read no plan can have them spilled, so this may do it. */
    void finish() {
        rows.freeMemory(rows.acquireMemory(OF_PLANS * memory.pageSizeBytes()));
    }

    /** Reads the rows of a kind, which have so many columns, from the first one. */
    PartitionReader reader(int kind, int columns) {
        try {
            return new Reader(rows.getIterator(0), kind, columns);
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    static class Reader implements PartitionReader {
        private final UnsafeSorterIterator rows;
        private final int kind;
        private final UnsafeRow row;

        Reader(UnsafeSorterIterator rows, int kind, int columns) {
            this.rows = rows;
            this.kind = kind;
            row = new UnsafeRow(columns);
        }

        public boolean next() throws IOException {
            while (rows.hasNext()) {
                rows.loadNext();
                if (rows.getKeyPrefix() == kind) {
                    row.pointTo(rows.getBaseObject(), rows.getBaseOffset(), rows.getRecordLength());
                    return true;
                }
            }
            return false;
        }

        public Object get() {
            return row;
        }

        public void close() {
            // the task still holds them
        }
    }
}
