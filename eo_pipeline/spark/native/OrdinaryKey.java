package eo.pipeline;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads the keys of records in which there is nothing to judge: null, a text in UTF-8, or an ordinary
 * JSON object.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class OrdinaryKey implements Serializable {
    /** Null: a key is a text. */
    private final OrdinaryJson json;
    private final int many;

    /** Of "many" columns; "told" as {@link OrdinaryJson} takes it, empty for a text. */
    OrdinaryKey(String told, int many) {
        json = told.length() == 0 ? null : new OrdinaryJson(told);
        this.many = many;
    }

    /** The columns, and behind them the names of unknown fields; null: it must be judged. */
    Object[] of(InternalRow record) {
        if (record.isNullAt(KafkaRanges.KEY)) {
            return new Object[many + 1];
        }
        byte[] key = record.getBinary(KafkaRanges.KEY);
        if (json == null) {
            UTF8String text = UTF8String.fromBytes(key);
            return text.isValid() ? new Object[] {text, null} : null;
        }
        return json.values(key, record);
    }
}
