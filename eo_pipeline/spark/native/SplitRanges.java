package eo.pipeline;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Map;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A source of Spark's like {@link StagedRanges}, for several tables: a task reads its ranges once,
 * and each record is staged for every table that takes it. Rows that a plan of Spark's makes of the
 * records, a temporary view of {@link DecodedRanges}, are staged by the same task, where the plan goes
 * task by task.
 *
 * It gives rows for each table that is staged here, and one a task, of table -1, that counts what was
 * read, and how much each table takes. Which tables take a record says the view "conditions", see
 * {@link Conditions}; the options of each table, {@link SplitTables}.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class SplitRanges implements TableProvider {
    static final StructType TOLD = numbered();

    private static StructType numbered() {
        StructType told = new StructType().add("number", DataTypes.IntegerType);
        for (int i = 0; i < RangeStager.TOLD.size(); i++) {
            told = told.add(RangeStager.TOLD.apply(i));
        }
        return told;
    }

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new Ranges();
    }

    /** What is read of: there is nothing to know before its options are. */
    static class Ranges extends OptionsTable {
        Ranges() {
            super("SplitRanges", TOLD);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new Job(options);
        }
    }

    /** The one job. */
    static class Job implements ScanBuilder, LocalScan {
        private final CaseInsensitiveStringMap options;

        Job(CaseInsensitiveStringMap options) {
            this.options = options;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return TOLD;
        }

        public String description() {
            return "SplitRanges of Kafka";
        }

        public InternalRow[] rows() {
            SparkSession session = (SparkSession) SparkSession.active();
            Split split = Split.begin(options.get(KafkaRanges.PREFIX + "split"));
            try {
                SplitTables tables = new SplitTables(options, session);
                Batch kafka = KafkaRanges.batch(
                    split.readsHeaders() ? KafkaRanges.withHeaders(options) : options);
                split.divide(KafkaRanges.shared(kafka, options));
                Run run = new Run(session, split, tables, KafkaReaders.of(kafka));
                QueryExecution shown = tables.first();
                return told(tables, (Object[]) (shown == null ? run.apply() : SQLExecution$.MODULE$.withNewExecutionId(
                    shown, scala.Option.apply("eo-pipeline"), run)));
            } finally {
                split.end();
            }
        }

        private InternalRow[] told(SplitTables tables, Object[] tasks) {
            ArrayList told = new ArrayList();
            for (int i = 0; i < tasks.length; i++) {
                Object[] ofTask = (Object[]) tasks[i];
                for (int j = 0; j < ofTask.length; j++) {
                    told.add(told((Object[]) ofTask[j]));
                }
            }
            for (int i = 0; i < tables.plans.length; i++) {
                if (tables.why(i) != null) {
                    told.add(told(new Object[] {new Integer(i), tables.why(i), null, null, null}));
                } else if (tables.plans[i] != null) {
                    InternalRow[] parts = Totals.told(tables.rowTotals(i));
                    for (int j = 0; j < parts.length; j++) {
                        String part = parts[j].getUTF8String(0).toString();
                        told.add(told(new Object[] {new Integer(i), null, null, null, part}));
                    }
                }
            }
            return (InternalRow[]) told.toArray(new InternalRow[0]);
        }

        private static InternalRow told(Object[] values) {
            return new GenericInternalRow(new Object[] {
                values[0], UTF8String.fromString((String) values[1]),
                UTF8String.fromString((String) values[2]), values[3],
                UTF8String.fromString((String) values[4])});
        }
    }

    /** Plans the tables' rows, and runs the job; what each task tells. */
    static class Run extends scala.runtime.AbstractFunction0 {
        private final SparkSession session;
        private final Split split;
        private final SplitTables tables;
        private final PartitionReaderFactory kafka;

        Run(SparkSession session, Split split, SplitTables tables, PartitionReaderFactory kafka) {
            this.session = session;
            this.split = split;
            this.tables = tables;
            this.kafka = kafka;
        }

        public Object apply() {
            tables.plan(split);
            RDD job = new SplitRdd(session.sparkContext(), kafka, tables, split.parts());
            return session.sparkContext().runJob(
                job, new Told(), scala.reflect.ClassTag$.MODULE$.apply(Object.class));
        }
    }

    /** What a task gives: the one thing that it has. */
    static class Told extends scala.runtime.AbstractFunction2 implements Serializable {
        public Object apply(Object context, Object told) {
            return ((scala.collection.Iterator) told).next();
        }
    }
}
