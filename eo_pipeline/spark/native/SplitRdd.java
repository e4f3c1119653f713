package eo.pipeline;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.OneToOneDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The job of {@link SplitRanges}: a task reads some ranges for all tables, and then runs its share of
 * the plans by which Spark makes the rows of some of them. It gives one array: what is told of each
 * table.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
class SplitRdd extends RDD {
    /** What the tasks under way hold, by their attempts. */
    private static final Map UNDER_WAY = new ConcurrentHashMap();

    private final PartitionReaderFactory kafka;
    private final SplitTables tables;
    private final transient Partition[] parts;

    SplitRdd(
            SparkContext context, PartitionReaderFactory kafka, SplitTables tables, InputPartition[] parts) {
        super(context, parents(tables), scala.reflect.ClassTag$.MODULE$.apply(Object.class));
        this.kafka = kafka;
        this.tables = tables;
        this.parts = new Partition[parts.length];
        for (int i = 0; i < parts.length; i++) {
            this.parts[i] = new Part(i, (KafkaRanges.Shared) parts[i], tables);
        }
    }

    private static Seq parents(SplitTables tables) {
        ArrayList parents = new ArrayList();
        for (int i = 0; i < tables.plans.length; i++) {
            if (tables.plans[i] != null) {
                parents.add(new OneToOneDependency(tables.plans[i].rows));
            }
        }
        return CollectionConverters.asScala((java.util.List) parents).toSeq();
    }

    public Partition[] getPartitions() {
        return parts;
    }

    public Seq getPreferredLocations(Partition part) {
        String[] hosts = ((Part) part).ranges.preferredLocations();
        return CollectionConverters.asScala(java.util.Arrays.asList((Object[]) hosts)).toSeq();
    }

    public scala.collection.Iterator compute(Partition partition, TaskContext context) {
        try {
            return scala.collection.Iterator$.MODULE$.single(told((Part) partition, context));
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private Object[] told(Part part, TaskContext context) throws IOException {
        Splitter splitter = new Splitter(kafka, tables, part.ranges);
        Long attempt = new Long(context.taskAttemptId());
        UNDER_WAY.put(attempt, splitter);
        try {
            return splitter.split(context, part.ofPlans).toArray();
        } finally {
            UNDER_WAY.remove(attempt);
            splitter.close();
        }
    }

    /** The rows of a table that this task holds; null: it is another job's. */
    static PartitionReader held(int number) {
        TaskContext context = TaskContext.get();
        Object splitter = context == null ? null : UNDER_WAY.get(new Long(context.taskAttemptId()));
        return splitter == null ? null : ((Splitter) splitter).held(number);
    }

    /** What one task does. */
    static class Part implements Partition {
        private final int index;
        final KafkaRanges.Shared ranges;

        /** By a table's number its share of the plan; null: there is none. */
        final Partition[] ofPlans;

        Part(int index, KafkaRanges.Shared ranges, SplitTables tables) {
            this.index = index;
            this.ranges = ranges;
            ofPlans = new Partition[tables.plans.length];
            for (int i = 0; i < ofPlans.length; i++) {
                if (tables.plans[i] != null) {
                    ofPlans[i] = tables.plans[i].rows.partitions()[index];
                }
            }
        }

        public int index() {
            return index;
        }

        public int hashCode() {
            return index;
        }

        public boolean org$apache$spark$Partition$$super$equals(Object other) {
            return this == other;
        }
    }
}
