package eo.pipeline;

import java.io.Serializable;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.SerializableConfiguration;

/**
 * What {@link StagedRanges} was asked for by its options.
 *
 * "rows" are all columns of a row: first those of the record, then the checkpoint's number, and, if
 * there are more, topic, partition and offset.
 */
class Staging implements Serializable {
    /** No column of a row, but what is made of all of it. */
    static final int WHOLE = -1;

    /** The bytes of the column that is staged so. */
    static final int TEXT = -2;

    private static final String JSON = KafkaRanges.PREFIX + "json.";

    /** Null: files are held in memory. */
    final String folder;
    final Decoding decoding;
    final int fields;
    final StructType rows;
    final long checkpoint;

    /** Places of the columns that must have a value. */
    final int[] needed;

    /** Places of the columns that are hashed, in their order. */
    final int[] hashed;

    /** The columns of a file, and of which column of a row each is: {@link #WHOLE}, {@link #TEXT}. */
    final StructType written;
    final int[] places;

    /** How files are written, and why they are left to Spark; null: they are not. */
    final SerializableConfiguration conf;
    final String why;

    /** The columns that a row's JSON object is made of, by these options; null: there is no object. */
    final int[] document;
    final Map json;

    /** The column that is staged as the bytes of its text; -1: none is. */
    final int text;

    Staging(CaseInsensitiveStringMap options) {
        folder = options.get(KafkaRanges.PREFIX + "folder");
        decoding = new Decoding(options);
        fields = decoding.columns.size();
        rows = (StructType) DataType.fromJson(told(options, "rows"));
        checkpoint = Long.parseLong(told(options, "checkpoint"));
        needed = places(told(options, "needed"));
        hashed = places(told(options, "hashed"));
        written = (StructType) DataType.fromJson(told(options, "written"));
        places = places(told(options, "places"));
        conf = StagedFile.settings(options, written);
        why = StagedFile.leftToSpark(conf.value());
        int[] fields = places(told(options, "document"));
        document = fields.length == 0 ? null : fields;
        json = json(options);
        text = options.getInt(KafkaRanges.PREFIX + "text", -1);
    }

    private static Map json(CaseInsensitiveStringMap options) {
        HashMap own = new HashMap();
        Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry each = (Map.Entry) all.next();
            String name = (String) each.getKey();
            if (name.startsWith(JSON)) {
                own.put(name.substring(JSON.length()), each.getValue());
            }
        }
        return own;
    }

    private static String told(CaseInsensitiveStringMap options, String name) {
        String told = options.get(KafkaRanges.PREFIX + name);
        if (told == null) {
            throw new IllegalArgumentException("no option " + KafkaRanges.PREFIX + name);
        }
        return told;
    }

    private static int[] places(String told) {
        if (told.length() == 0) {
            return new int[0];
        }
        String[] each = told.split(",");
        int[] places = new int[each.length];
        for (int i = 0; i < each.length; i++) {
            places[i] = Integer.parseInt(each[i]);
        }
        return places;
    }
}
