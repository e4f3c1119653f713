package eo.pipeline;

import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of Spark's that has a function for every schema: its name in the namespace "json" is
 * what {@link OrdinaryJson} is to read, so that none need be registered; and in the namespace "rows"
 * one that counts into the {@link Totals} of its name.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class OrdinaryFunctions implements FunctionCatalog {
    private String name;

    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
    }

    public String name() {
        return name;
    }

    public Identifier[] listFunctions(String[] namespace) {
        return new Identifier[0];
    }

    public UnboundFunction loadFunction(Identifier identifier) {
        boolean counts = identifier.namespace().length == 1 && identifier.namespace()[0].equals("rows");
        return counts ? new ForRows(identifier.name()) : new ForSchemas(identifier.name());
    }

    /** The function that is told by its name what to read. */
    static class ForSchemas implements UnboundFunction {
        private final String told;

        ForSchemas(String told) {
            this.told = told;
        }

        public String name() {
            return "ordinary_json";
        }

        public String description() {
            return "ordinary_json(binary): the record, or what it is judged by";
        }

        public BoundFunction bind(StructType arguments) {
            return new OrdinaryJson(told);
        }
    }

    /** The function that counts rows into the totals of its name. */
    static class ForRows implements UnboundFunction {
        private final String totals;

        ForRows(String totals) {
            this.totals = totals;
        }

        public String name() {
            return "count_row";
        }

        public String description() {
            return "count_row(hash, why, topic, partition, offset): true";
        }

        public BoundFunction bind(StructType arguments) {
            return new RowCounting(totals);
        }
    }
}
