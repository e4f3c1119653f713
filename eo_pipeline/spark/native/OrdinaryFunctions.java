package eo.pipeline;

import java.util.Arrays;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of Spark's that has a function for every schema: its name in the namespace "json" is
 * what {@link OrdinaryJson} is to read, so that none need be registered; in the namespace "rows" one
 * that counts into the {@link Totals} of its name; and in the namespace "texts" {@link TextCheck}
 * and {@link HeaderTexts}.
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
        String told = identifier.name();
        if (Arrays.equals(identifier.namespace(), new String[] {"rows"})) {
            return new Ready(new RowCounting(told));
        }
        if (Arrays.equals(identifier.namespace(), new String[] {"texts"})) {
            boolean isOfHeaders = told.equals("headers");
            return new Ready(isOfHeaders ? (ScalarFunction) new HeaderTexts() : new TextCheck());
        }
        return new Ready(new OrdinaryJson(told));
    }

    /** A function that is the same for all arguments. */
    static class Ready implements UnboundFunction {
        private final ScalarFunction function;

        Ready(ScalarFunction function) {
            this.function = function;
        }

        public String name() {
            return function.name();
        }

        public String description() {
            return function.name();
        }

        public BoundFunction bind(StructType arguments) {
            return function;
        }
    }
}
