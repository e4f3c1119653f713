package eo.pipeline;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The schemas of a registry that records of one task were written with: their places among those that
 * were looked for, and the first and the last key of the others.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class MetSchemas {
    private final int place;
    private final BitSet writers = new BitSet();
    private UTF8String first;
    private UTF8String last;

    /** What a judge says of it begins at "place": a number or null, a stranger's key or null. */
    MetSchemas(int place) {
        this.place = place;
    }

    void wrote(int index) {
        writers.set(index);
    }

    void met(InternalRow said) {
        if (!said.isNullAt(place)) {
            wrote(said.getInt(place));
        }
        if (said.isNullAt(place + 1)) {
            return;
        }
        UTF8String key = said.getUTF8String(place + 1);
        if (first == null || key.binaryCompare(first) < 0) {
            first = key.copy();
        }
        if (last == null || key.binaryCompare(last) > 0) {
            last = key.copy();
        }
    }

    HashMap counted() {
        HashMap counted = new HashMap();
        ArrayList places = new ArrayList();
        for (int i = writers.nextSetBit(0); i >= 0; i = writers.nextSetBit(i + 1)) {
            places.add(new Integer(i));
        }
        counted.put("writers", places);
        ArrayList strangers = new ArrayList();
        if (first != null) {
            strangers.add(first.toString());
            strangers.add(last.toString());
        }
        counted.put("strangers", strangers);
        return counted;
    }
}
