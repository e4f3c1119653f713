package eo.pipeline;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.hadoop.ParquetOutputFormat;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.api.WriteSupport;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.parquet.ParquetWriteSupport;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * A Parquet file of rows: of plain columns a {@link StagedFile}, else one of Parquet's own writer, by
 * what Spark tells it of a row.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
abstract class RowFile {
    static RowFile of(OutputFile to, StructType columns, Configuration conf) throws IOException {
        return isFlat(columns) ? (RowFile) new Flat(to, columns, conf) : new Nested(to, conf);
    }

    private static boolean isFlat(StructType columns) {
        boolean isFlat = true;
        for (int i = 0; i < columns.size(); i++) {
            isFlat &= Plain.isPlain(columns.apply(i).dataType());
        }
        return isFlat;
    }

    abstract void put(InternalRow row) throws IOException;

    /** The file is whole. */
    abstract void finish() throws IOException;

    /** Whether or not it is whole, which then it never will be. */
    abstract void close() throws IOException;

    /** The value of a column in Spark's own terms. */
    static Object value(InternalRow row, int at, DataType type) {
        return row.isNullAt(at) ? null : row.get(at, type);
    }

    static final class Flat extends RowFile {
        private final int[] kinds;
        private final DataType[] types;
        private final int[] indexes;
        private final Object[] values;
        private final StagedFile file;

        Flat(OutputFile to, StructType columns, Configuration conf) throws IOException {
            int many = columns.size();
            kinds = new int[many];
            types = new DataType[many];
            indexes = new int[many];
            values = new Object[many];
            for (int i = 0; i < many; i++) {
                types[i] = columns.apply(i).dataType();
                kinds[i] = Plain.kind(types[i]);
                indexes[i] = i;
            }
            file = new StagedFile(to, columns, conf);
        }

        void put(InternalRow row) throws IOException {
            for (int i = 0; i < values.length; i++) {
                values[i] = row.isNullAt(i) ? null : value(row, i);
            }
            file.put(values, indexes, null, null);
        }

        private Object value(InternalRow row, int at) {
            switch (kinds[at]) {
                case Plain.TEXT:
                    return row.getUTF8String(at);
                case Plain.LONG:
                    return new Long(row.getLong(at));
                case Plain.DOUBLE:
                    return new Double(row.getDouble(at));
                default:
                    return row.get(at, types[at]);
            }
        }

        void finish() throws IOException {
            file.finish();
        }

        void close() throws IOException {
            file.close();
        }
    }

    static final class Nested extends RowFile {
        private final ParquetWriter writer;

        Nested(OutputFile to, Configuration conf) throws IOException {
            writer = new Builder(to)
                .withConf(conf)
                .withCompressionCodec(CompressionCodecName.fromConf(conf.get(ParquetOutputFormat.COMPRESSION)))
                .withRowGroupSize(StagedFile.groupBytes(conf))
                .withPageSize(ParquetOutputFormat.getPageSize(conf))
                .withDictionaryPageSize(ParquetOutputFormat.getDictionaryPageSize(conf))
                .withDictionaryEncoding(ParquetOutputFormat.getEnableDictionary(conf))
                .withPageWriteChecksumEnabled(ParquetOutputFormat.getPageWriteChecksumEnabled(conf))
                .build();
        }

        void put(InternalRow row) throws IOException {
            writer.write(row);
        }

        void finish() throws IOException {
            writer.close();
        }

        void close() throws IOException {
            writer.close();
        }
    }

    private static final class Builder extends ParquetWriter.Builder {
        Builder(OutputFile to) {
            super(to);
        }

        protected ParquetWriter.Builder self() {
            return this;
        }

        protected WriteSupport getWriteSupport(Configuration conf) {
            return new ParquetWriteSupport();
        }
    }
}
