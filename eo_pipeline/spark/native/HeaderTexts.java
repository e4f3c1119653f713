package eo.pipeline;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function that makes a map of texts of a record's headers, the last one of a name, as the columns
 * of a condition have it (condition_columns in read.py), without a row for each step.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class HeaderTexts implements ScalarFunction, Serializable {
    public DataType[] inputTypes() {
        StructType header =
            new StructType().add("key", DataTypes.StringType).add("value", DataTypes.BinaryType);
        return new DataType[] {DataTypes.createArrayType(header)};
    }

    public DataType resultType() {
        return DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType);
    }

    public String name() {
        return "headers";
    }

    public String canonicalName() {
        return "eo.pipeline.headers";
    }

    /** Spark calls this by its name. */
    public MapData invoke(ArrayData headers) {
        if (headers == null) {
            return null;
        }
        int many = headers.numElements();
        Object[] names = new Object[many];
        Object[] values = new Object[many];
        int size = 0;
        for (int i = 0; i < many; i++) {
            InternalRow header = headers.getStruct(i, 2);
            UTF8String name = header.getUTF8String(0);
            int at = 0;
            while (at < size && !name.equals(names[at])) {
                at++;
            }
            names[at] = name;
            values[at] = header.isNullAt(1) ? null : UTF8String.fromBytes(header.getBinary(1));
            size = Math.max(size, at + 1);
        }
        return new ArrayBasedMapData(cut(names, size), cut(values, size));
    }

    private static ArrayData cut(Object[] values, int size) {
        return new GenericArrayData(java.util.Arrays.copyOf(values, size));
    }
}
