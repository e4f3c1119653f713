package eo.pipeline;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.io.OutputFile;
import org.apache.spark.TaskContext;
import org.apache.spark.executor.OutputMetrics;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.CollectMetrics;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.SerializableConfiguration;

/**
 * A source of Spark's whose rows tell of files: the rows of a temporary view are staged by the tasks
 * that make them, one file each, while the plan is made that reads this source; and of each file there
 * is one row. After those come the {@link Totals} that the options name.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class StagedRows implements TableProvider {
    private static final StructType TOLD = new StructType()
        .add("why", DataTypes.StringType)
        .add("file", DataTypes.StringType)
        .add("part", DataTypes.StringType);

    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return TOLD;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new View();
    }

    static class View extends OptionsTable {
        View() {
            super("StagedRows", TOLD);
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

        private String told(String name) {
            return options.get(KafkaRanges.PREFIX + name);
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return TOLD;
        }

        public String description() {
            return "StagedRows of " + told("view");
        }

        public InternalRow[] rows() {
            SparkSession session = (SparkSession) SparkSession.active();
            QueryExecution plan = plan(session, told("view"));
            Writer writer = Writer.of(options, plan.analyzed().schema());
            String why = writer.leftToSpark(plan);
            if (why != null) {
                return new InternalRow[] {told(why, null, null)};
            }
            return staged(session, plan, writer);
        }

        private InternalRow[] staged(SparkSession session, QueryExecution plan, Writer writer) {
            Object[] files = (Object[]) SQLExecution$.MODULE$.withNewExecutionId(
                plan, scala.Option.apply("eo-pipeline"), new Run(session, plan, writer));
            List made = new ArrayList();
            for (int i = 0; i < files.length; i++) {
                if (files[i] != null) {
                    made.add(told(null, (String) files[i], null));
                }
            }
            String[] totals = told("totals").split(",");
            for (int i = 0; i < totals.length; i++) {
                InternalRow[] parts = Totals.told(totals[i]);
                for (int j = 0; j < parts.length; j++) {
                    made.add(told(null, null, parts[j].getUTF8String(0).toString()));
                }
            }
            return (InternalRow[]) made.toArray(new InternalRow[0]);
        }

        private static InternalRow told(String why, String file, String part) {
            return new GenericInternalRow(new Object[] {
                UTF8String.fromString(why), UTF8String.fromString(file), UTF8String.fromString(part)});
        }
    }

    /** The plan of a temporary view, which is no more. */
    static QueryExecution plan(SparkSession session, String view) {
        QueryExecution plan = session.table(view).queryExecution();
        session.sessionState().catalog().dropTempView(view);
        return plan;
    }

    /** Whether a plan has metrics, which Spark gives of a plan that is an action itself alone. */
    static class Observing extends scala.runtime.AbstractFunction1 {
        boolean isIn(LogicalPlan plan) {
            return plan.exists(this);
        }

        public Object apply(Object node) {
            return node instanceof CollectMetrics ? Boolean.TRUE : Boolean.FALSE;
        }
    }

    static class Run extends scala.runtime.AbstractFunction0 {
        private final SparkSession session;
        private final QueryExecution plan;
        private final Writer writer;

        Run(SparkSession session, QueryExecution plan, Writer writer) {
            this.session = session;
            this.plan = plan;
            this.writer = writer;
        }

        public Object apply() {
            RDD rows = plan.toRdd();
            writer.begin();
            return session.sparkContext().runJob(
                rows, writer, scala.reflect.ClassTag$.MODULE$.apply(String.class));
        }
    }

    /** What a task does: the name of its file; null if there are no rows for one. */
    static class Writer extends scala.runtime.AbstractFunction2 implements Serializable {
        private static final int OFTEN = 1023;

        /** Null: files are held. */
        private final String folder;
        private final StructType columns;
        private final SerializableConfiguration conf;

        private Writer(String folder, StructType columns, SerializableConfiguration conf) {
            this.folder = folder;
            this.columns = columns;
            this.conf = conf;
        }

        /** By the options of a source. */
        static Writer of(CaseInsensitiveStringMap options, StructType columns) {
            String folder = options.get(KafkaRanges.PREFIX + "folder");
            return new Writer(folder, columns, StagedFile.settings(options, columns));
        }

        /** Why the rows of a plan are left to Spark; null if they are not. */
        String leftToSpark(QueryExecution plan) {
            String why = StagedFile.leftToSpark(conf.value());
            boolean isLeft = why == null && new Observing().isIn(plan.analyzed());
            return isLeft ? "metrics that a user observes" : why;
        }

        /** The folder tells that the job has begun, long before a row perhaps. */
        void begin() {
            try {
                Path path = folder == null ? null : new Path(folder);
                if (path != null && !StreamFile.makeFolder(path, conf.value())) {
                    FileSystem files = path.getFileSystem(conf.value());
                    if ("hdfs".equals(files.getScheme())) {
                        files.mkdirs(path);
                    }
                }
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        public Object apply(Object context, Object rows) {
            try {
                return staged((TaskContext) context, (scala.collection.Iterator) rows)[1];
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        /**
         * Why the rows are not staged, the name of their file, and the file itself if there is no
         * folder for it; of no rows three times null.
         */
        Object[] staged(TaskContext context, scala.collection.Iterator rows) throws IOException {
            if (!rows.hasNext()) {
                return new Object[3];
            }
            HeldFile held = folder == null ? new HeldFile() : null;
            String name = held != null
                ? null : "part-" + context.partitionId() + "-" + UUID.randomUUID() + ".parquet";
            OutputFile to = held != null ? held : StreamFile.of(new Path(folder, name), conf.value());
            RowFile file = RowFile.of(to, columns, conf.value());
            long written = 0;
            long bytes = 0;
            try {
                while (rows.hasNext()) {
                    InternalRow row = (InternalRow) rows.next();
                    file.put(row);
                    if (held != null) {
                        bytes += HeldFile.size(row);
                        if (bytes > HeldFile.MOST_BYTES) {
                            return new Object[] {HeldFile.TOO_MUCH, null, null};
                        }
                    }
                    if ((written++ & OFTEN) == 0) {
                        context.killTaskIfInterrupted();
                    }
                }
                file.finish();
            } finally {
                file.close();
            }
            OutputMetrics metrics = context.taskMetrics().outputMetrics();
            metrics.setRecordsWritten(metrics.recordsWritten() + written);
            return new Object[] {null, name, held == null ? null : held.bytes()};
        }
    }
}
