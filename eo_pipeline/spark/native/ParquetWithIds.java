package eo.pipeline;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.Job;
import org.apache.parquet.hadoop.ParquetOutputFormat;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.schema.GroupType;
import org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.parquet.schema.MessageType;
import org.apache.parquet.schema.Type;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * Parquet as Spark writes it, with ids for which a Spark type has no place: those of an array's
 * elements, and of a map's keys and values. A column's metadata has them: its own, and then those of
 * all within it, each before what is within that.
 */
public class ParquetWithIds extends ParquetFileFormat {
    private static final String IDS = "eo.ids";

    public OutputWriterFactory prepareWrite(
            SparkSession session, Job job, scala.collection.immutable.Map options, StructType columns) {
        OutputWriterFactory made = super.prepareWrite(session, job, options, columns);
        ParquetOutputFormat.setWriteSupportClass(job, Support.class);
        return made;
    }

    /** Spark's own, but for the ids. */
    public static class Support extends ParquetWriteSupport {
        public WriteSupport.WriteContext init(Configuration conf) {
            WriteSupport.WriteContext made = super.init(conf);
            String said = conf.get(ParquetWriteSupport.SPARK_ROW_SCHEMA());
            StructType columns = (StructType) DataType.fromJson(said);
            List fields = new ArrayList();
            for (int i = 0; i < columns.size(); i++) {
                long[] ids = columns.apply(i).metadata().getLongArray(IDS);
                fields.add(new Ids(ids).of((Type) made.getSchema().getFields().get(i)));
            }
            MessageType schema = new MessageType(made.getSchema().getName(), fields);
            return new WriteSupport.WriteContext(schema, made.getExtraMetaData());
        }
    }

    /** Ids that are given away in their order. */
    private static final class Ids {
        private final long[] ids;
        private int next;

        Ids(long[] ids) {
            this.ids = ids;
        }

        Type of(Type field) {
            int id = (int) ids[next++];
            return (field.isPrimitive() ? field : within(field.asGroupType())).withId(id);
        }

        private Type within(GroupType group) {
            LogicalTypeAnnotation kind = group.getLogicalTypeAnnotation();
            boolean isOfMany = kind instanceof LogicalTypeAnnotation.ListLogicalTypeAnnotation
                || kind instanceof LogicalTypeAnnotation.MapLogicalTypeAnnotation;
            if (!isOfMany) {
                return group.withNewFields(all(group));
            }
            // what repeats is Parquet's own, and has no id
            GroupType repeated = group.getType(0).asGroupType();
            List one = new ArrayList();
            one.add(repeated.withNewFields(all(repeated)));
            return group.withNewFields(one);
        }

        private List all(GroupType group) {
            List made = new ArrayList();
            for (int i = 0; i < group.getFieldCount(); i++) {
                made.add(of(group.getType(i)));
            }
            return made;
        }
    }
}
