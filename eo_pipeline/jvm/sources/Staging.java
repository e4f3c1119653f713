package eo.pipeline;

import java.io.Serializable;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@link StagedRanges} was asked for by its options.
 *
 * "rows" are all columns of a row: first those of the record, then the checkpoint's number, and, if
 * there are more, topic, partition and offset.
 */
class Staging implements Serializable {
    /** The column of a file whose rows are one value each. */
    private static final String PACKED = "_eo_packed";

    /** Null: files are held in memory. */
    final String folder;
    final OrdinaryJson json;
    final int fields;
    final StructType rows;
    final long checkpoint;
    final boolean skipsTombstones;

    /** Places of the columns that must have a value. */
    final int[] needed;

    /** Places of the columns that are hashed, in their order. */
    final int[] hashed;

    /** What makes one value of a row, null if a row is staged as columns. */
    final CopyRow copy;

    /** The columns of a file, and of which column of a row each is; -1: of the whole row. */
    final StructType written;
    final int[] places;

    Staging(CaseInsensitiveStringMap options) {
        folder = options.get(StagedRanges.PREFIX + "folder");
        String[] schemas = told(options, "schemas").split("\n");
        StructType wanted = (StructType) DataType.fromJson(schemas[0]);
        json = new OrdinaryJson(told(options, "schemas"), wanted, (StructType) DataType.fromJson(schemas[1]));
        fields = wanted.size();
        rows = (StructType) DataType.fromJson(told(options, "rows"));
        checkpoint = Long.parseLong(told(options, "checkpoint"));
        skipsTombstones = options.getBoolean(StagedRanges.PREFIX + "skips_tombstones", false);
        needed = places(told(options, "needed"));
        hashed = places(told(options, "hashed"));
        boolean packs = options.getBoolean(StagedRanges.PREFIX + "packs", false);
        copy = packs ? new CopyRow(rows) : null;
        int[] beside = places(told(options, "beside"));
        int first = packs ? 1 : 0;
        int many = packs ? 1 + beside.length : rows.size();
        places = new int[many];
        StructField[] columns = new StructField[many];
        if (packs) {
            places[0] = -1;
            columns[0] = DataTypes.createStructField(PACKED, DataTypes.BinaryType, false);
        }
        for (int i = first; i < many; i++) {
            places[i] = packs ? beside[i - 1] : i;
            columns[i] = rows.fields()[places[i]];
        }
        written = new StructType(columns);
    }

    private static String told(CaseInsensitiveStringMap options, String name) {
        String told = options.get(StagedRanges.PREFIX + name);
        if (told == null) {
            throw new IllegalArgumentException("no option " + StagedRanges.PREFIX + name);
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
