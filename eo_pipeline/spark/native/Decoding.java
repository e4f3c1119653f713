package eo.pipeline;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * How records become rows, by a source's options; as tasks need it.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Decoding implements Serializable {
    /** Reads values; null: every record is judged. */
    final Ordinary ordinary;

    /** The same, if values have a writer's schema; else null. */
    final OrdinaryWritten written;

    /** Columns of a value; those of the key follow. */
    final int fields;

    /** Reads keys; null: they are no columns. */
    final OrdinaryKey key;

    /** Null: what needs one is not read here. */
    final Judge judge;

    /** Says which records are read at all; null: each is. */
    final Judge where;

    /** Null: bad records are counted alone. */
    final DeadLetters letters;

    /** Columns of a good record. */
    final StructType columns;

    /** Parts of a record whose schemas a registry has. */
    final int schemas;
    final boolean skipsTombstones;
    final boolean failsUnknown;

    Decoding(CaseInsensitiveStringMap options) {
        columns = (StructType) DataType.fromJson(options.get(KafkaRanges.PREFIX + "columns"));
        String told = options.get(KafkaRanges.PREFIX + "read");
        String ofWriters = options.get(KafkaRanges.PREFIX + "read_written");
        written = ofWriters == null ? null : new OrdinaryWritten(ofWriters);
        if (told == null) {
            ordinary = written;
        } else {
            ordinary = told.length() == 0 ? (Ordinary) new Raw() : new OrdinaryJson(told);
        }
        fields = options.getInt(KafkaRanges.PREFIX + "fields", columns.size());
        String ofKey = options.get(KafkaRanges.PREFIX + "read_key");
        key = ofKey == null ? null : new OrdinaryKey(ofKey, columns.size() - fields);
        String view = options.get(KafkaRanges.PREFIX + "judge");
        judge = view == null ? null : Judge.of((SparkSession) SparkSession.active(), view);
        String condition = options.get(KafkaRanges.PREFIX + "where");
        where = condition == null ? null : Judge.of((SparkSession) SparkSession.active(), condition);
        schemas = options.getInt(KafkaRanges.PREFIX + "schemas", 0);
        letters = DeadLetters.of(options);
        skipsTombstones = options.getBoolean(KafkaRanges.PREFIX + "skips_tombstones", false);
        failsUnknown = options.getBoolean(KafkaRanges.PREFIX + "fails_unknown", false);
    }

    /** A value as it is. */
    private static final class Raw implements Ordinary {
        public Object[] values(byte[] value, InternalRow record) {
            return new Object[] {value, null};
        }
    }
}
