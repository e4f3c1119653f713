package eo.pipeline;

import java.util.HashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.TaskCompletionListener;

/**
 * A function that is true of every row, and counts it, with the row's hash and the reason why it does
 * not fit, if it does not, and an example of such a row: where in Kafka it came from. Its {@link
 * Totals} are those of the name that it is called by.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class RowCounting implements ScalarFunction {
    private final String name;
    private final Totals.Parts totals;
    private transient Counts counts;

    RowCounting(String name) {
        this.name = name;
        totals = Totals.of(name);
    }

    public DataType[] inputTypes() {
        return new DataType[] {
            DataTypes.LongType, DataTypes.StringType, DataTypes.StringType, DataTypes.IntegerType,
            DataTypes.LongType};
    }

    public DataType resultType() {
        return DataTypes.BooleanType;
    }

    public boolean isResultNullable() {
        return false;
    }

    /** It must not be called twice for a row, nor for another one. */
    public boolean isDeterministic() {
        return false;
    }

    public String name() {
        return "count_row";
    }

    public String canonicalName() {
        return "eo.pipeline.count_row." + name;
    }

    /** Spark calls this by its name. */
    public boolean invoke(long hash, UTF8String why, UTF8String topic, int partition, long offset) {
        if (counts == null) {
            counts = new Counts(totals);
            TaskContext.get().addTaskCompletionListener(counts);
        }
        counts.add(hash);
        if (why != null) {
            counts.addUnfit(why, topic, partition, offset);
        }
        return true;
    }

    /** What was counted in one task. */
    static class Counts implements TaskCompletionListener {
        private final Totals.Parts totals;
        private final Hashes hashes = new Hashes();
        private long unfit;
        private HashMap example;

        Counts(Totals.Parts totals) {
            this.totals = totals;
        }

        void add(long hash) {
            hashes.add(hash);
        }

        void addUnfit(UTF8String why, UTF8String topic, int partition, long offset) {
            unfit++;
            if (example == null) {
                example = new HashMap();
                example.put("reason", why.toString());
                if (topic != null) {
                    example.put("topic", topic.toString());
                    example.put("partition", new Integer(partition));
                    example.put("offset", new Long(offset));
                }
            }
        }

        public void onTaskCompletion(TaskContext context) {
            HashMap counted = new HashMap();
            hashes.tell(counted);
            counted.put("unfit", new Long(unfit));
            counted.put("example", example);
            totals.put(context.partitionId(), counted);
        }
    }
}
