package eo.pipeline;

import java.io.Serializable;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A function that tells whether a text is UTF-8, as Spark's is_valid_utf8 does, which looks at one
 * byte after the other: eight at once, until one of them is no ASCII.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class TextCheck implements ScalarFunction, Serializable {
    private static final long HIGHS = 0x8080808080808080L;

    public DataType[] inputTypes() {
        return new DataType[] {DataTypes.StringType};
    }

    public DataType resultType() {
        return DataTypes.BooleanType;
    }

    public boolean isResultNullable() {
        return false;
    }

    public String name() {
        return "is_utf8";
    }

    public String canonicalName() {
        return "eo.pipeline.is_utf8";
    }

    /** Spark calls this by its name. */
    public boolean invoke(UTF8String text) {
        return text == null || isAscii(text) || text.isValid();
    }

    private static boolean isAscii(UTF8String text) {
        Object base = text.getBaseObject();
        long at = text.getBaseOffset();
        int size = text.numBytes();
        int i = 0;
        for (; i <= size - 8; i += 8) {
            if ((Platform.getLong(base, at + i) & HIGHS) != 0) {
                return false;
            }
        }
        for (; i < size; i++) {
            if (Platform.getByte(base, at + i) < 0) {
                return false;
            }
        }
        return true;
    }
}
