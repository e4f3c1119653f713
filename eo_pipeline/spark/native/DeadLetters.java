package eo.pipeline;

import java.io.IOException;
import java.io.Serializable;
import java.util.HashMap;
import java.util.UUID;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.io.OutputFile;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.SerializableConfiguration;

/**
 * Dead letters of the tasks of a job: bad records as a {@link Judge} gives them, after the number of
 * the checkpoint; in one file a task, as Spark writes them.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class DeadLetters implements Serializable {
    private final String folder;
    private final StructType columns;
    private final SerializableConfiguration conf;
    private final long checkpoint;

    /** So many a task: with more of them nothing is committed. */
    private final long most;

    private DeadLetters(CaseInsensitiveStringMap options) {
        folder = options.get(KafkaRanges.PREFIX + "letters");
        columns = (StructType) DataType.fromJson(options.get(KafkaRanges.PREFIX + "letters_columns"));
        conf = StagedFile.settings(options, columns);
        checkpoint = options.getLong(KafkaRanges.PREFIX + "checkpoint", 0);
        most = options.getLong(KafkaRanges.PREFIX + "letters_most", 0);
    }

    /** Null: nobody wants them. */
    static DeadLetters of(CaseInsensitiveStringMap options) {
        if (options.get(KafkaRanges.PREFIX + "letters") == null) {
            return null;
        }
        return new DeadLetters(options);
    }

    /** Those of one task. */
    static final class File {
        private final DeadLetters all;
        private RowFile file;
        private String name;
        private final Hashes hashes = new Hashes();

        File(DeadLetters all) {
            this.all = all;
        }

        /** Puts the letter of what a judge says, which has it and its hash at these places. */
        void put(InternalRow said, int place, int ofHash) throws IOException {
            if (hashes.rows() == all.most) {
                return;
            }
            InternalRow letter = said.getStruct(place, all.columns.size() - 1);
            if (file == null) {
                name = "part-" + UUID.randomUUID() + ".parquet";
                OutputFile to = StreamFile.of(new Path(all.folder, name), all.conf.value());
                file = new RowFile.Nested(to, all.conf.value());
            }
            Object[] values = new Object[all.columns.size()];
            values[0] = new Long(all.checkpoint);
            for (int i = 1; i < values.length; i++) {
                values[i] = RowFile.value(letter, i - 1, all.columns.apply(i).dataType());
            }
            file.put(new GenericInternalRow(values));
            hashes.add(said.getLong(ofHash));
        }

        /** Tells of the file, which is whole. */
        void finish(HashMap counted) throws IOException {
            if (file != null) {
                file.finish();
                counted.put("letters", name);
                HashMap sums = new HashMap();
                hashes.tell(sums);
                counted.put("letters_hashes", sums);
            }
        }

        void close() throws IOException {
            if (file != null) {
                file.close();
            }
        }
    }
}
