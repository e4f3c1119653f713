package eo.pipeline;

import java.io.Serializable;
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
    /** Null: every record is judged. */
    final OrdinaryJson ordinary;

    /** Null: what needs one is not read here. */
    final Judge judge;

    /** Null: bad records are counted alone. */
    final DeadLetters letters;

    /** Columns of a good record. */
    final StructType columns;
    final boolean skipsTombstones;
    final boolean failsUnknown;

    Decoding(CaseInsensitiveStringMap options) {
        columns = (StructType) DataType.fromJson(options.get(KafkaRanges.PREFIX + "columns"));
        String told = options.get(KafkaRanges.PREFIX + "read");
        ordinary = told == null ? null : new OrdinaryJson(told);
        String view = options.get(KafkaRanges.PREFIX + "judge");
        judge = view == null ? null : Judge.of((SparkSession) SparkSession.active(), view);
        letters = DeadLetters.of(options);
        skipsTombstones = options.getBoolean(KafkaRanges.PREFIX + "skips_tombstones", false);
        failsUnknown = options.getBoolean(KafkaRanges.PREFIX + "fails_unknown", false);
    }
}
