package eo.pipeline;

import java.io.CharArrayWriter;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.json.JSONOptions;
import org.apache.spark.sql.catalyst.json.JacksonGenerator;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Rows as JSON objects, written by Spark's own generator: what its to_json makes of a struct of these
 * columns by the same options.
 *
 * For one task: it keeps what it writes into.
 */
final class RowDocument {
    private final int[] places;
    private final Object[] values;
    private final GenericInternalRow row;
    private final CharArrayWriter text = new CharArrayWriter();
    private final JacksonGenerator generator;

    /** Of the columns at "places" of rows. */
    RowDocument(StructType rows, int[] places, Map options) {
        this.places = places;
        values = new Object[places.length];
        row = new GenericInternalRow(values);
        StructField[] fields = new StructField[places.length];
        for (int i = 0; i < places.length; i++) {
            fields[i] = rows.fields()[places[i]];
        }
        generator = new JacksonGenerator(
            new StructType(fields), text, new JSONOptions(scalas(options), "UTC", ""));
    }

    private static scala.collection.immutable.Map scalas(Map options) {
        scala.collection.immutable.Map made =
            (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty();
        Iterator all = options.entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry each = (Map.Entry) all.next();
            made = (scala.collection.immutable.Map) made.updated(each.getKey(), each.getValue());
        }
        return made;
    }

    UTF8String of(Object[] all) {
        for (int i = 0; i < places.length; i++) {
            values[i] = all[places[i]];
        }
        generator.write(row);
        generator.flush();
        UTF8String made = UTF8String.fromString(text.toString());
        text.reset();
        return made;
    }
}
