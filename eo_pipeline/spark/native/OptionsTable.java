package eo.pipeline;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.types.StructType;

/**
 * A table that is read by its options alone, and only in batches.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
abstract class OptionsTable implements SupportsRead {
    private final String name;
    private final StructType columns;

    OptionsTable(String name, StructType columns) {
        this.name = name;
        this.columns = columns;
    }

    public String name() {
        return name;
    }

    public StructType schema() {
        return columns;
    }

    public Set capabilities() {
        return new HashSet(Arrays.asList(new Object[] {TableCapability.BATCH_READ}));
    }
}
