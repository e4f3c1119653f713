package eo.pipeline;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.Dependency;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.datasources.v2.DataSourceRDDPartition;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeLike;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;

/**
 * A job of {@link SplitRanges} while the driver plans it: what the plans of its tables read, by the
 * tables' numbers. While it is {@link #named}, {@link DecodedRanges} that are planned are its own.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Split {
    private static final Map NAMED = new HashMap();

    private final String name;
    private final Map read = new HashMap();
    private InputPartition[] parts;

    private Split(String name) {
        this.name = name;
    }

    static Split begin(String name) {
        synchronized (NAMED) {
            Split begun = new Split(name);
            NAMED.put(name, begun);
            return begun;
        }
    }

    void end() {
        synchronized (NAMED) {
            NAMED.remove(name);
        }
    }

    /** Null: no job of this name is planned. */
    static Split named(String name) {
        synchronized (NAMED) {
            return (Split) NAMED.get(name);
        }
    }

    /** A plan of a table reads these columns; a second one has none. */
    void reads(String number, StructType columns) {
        read.put(number, read.containsKey(number) ? null : columns);
    }

    /** The columns that the plan of a table reads, once; null: it does not. */
    StructType readBy(int number) {
        return (StructType) read.get(String.valueOf(number));
    }

    boolean readsHeaders() {
        boolean found = false;
        Object[] all = read.values().toArray();
        for (int i = 0; i < all.length; i++) {
            if (all[i] != null) {
                found |= DecodedRow.Columns.readsHeaders((StructType) all[i]);
            }
        }
        return found;
    }

    void divide(InputPartition[] among) {
        parts = among;
    }

    /** What each task reads. */
    InputPartition[] parts() {
        return parts;
    }

    /** Whether the tasks of a plan need records of other tasks. */
    static boolean isShuffled(QueryExecution plan) {
        SparkPlan root = plan.executedPlan();
        if (root instanceof AdaptiveSparkPlanExec) {
            root = ((AdaptiveSparkPlanExec) root).initialPlan();
        }
        return root.exists(new IsShuffle());
    }

    private static class IsShuffle extends scala.runtime.AbstractFunction1 {
        public Object apply(Object node) {
            return node instanceof ShuffleExchangeLike ? Boolean.TRUE : Boolean.FALSE;
        }
    }

    /** Whether each task makes rows of what one task reads: task by task, down to the reading. */
    boolean isTaskByTask(RDD rows) {
        if (rows.partitions().length != parts.length) {
            return false;
        }
        Seq parents = rows.dependencies();
        if (parents.isEmpty()) {
            Partition first = rows.partitions()[0];
            return first instanceof DataSourceRDDPartition
                && ((DataSourceRDDPartition) first).inputPartitions().contains(parts[0]);
        }
        for (int i = 0; i < parents.size(); i++) {
            Dependency parent = (Dependency) parents.apply(i);
            if (!(parent instanceof OneToOneDependency) || !isTaskByTask(parent.rdd())) {
                return false;
            }
        }
        return true;
    }
}
