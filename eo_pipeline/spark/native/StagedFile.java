package eo.pipeline;

import java.io.IOException;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.mapreduce.Job;
import org.apache.parquet.bytes.HeapByteBufferAllocator;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.column.ParquetProperties.WriterVersion;
import org.apache.parquet.crypto.EncryptionPropertiesFactory;
import org.apache.parquet.hadoop.CodecFactory;
import org.apache.parquet.hadoop.ColumnChunkPageWriteStore;
import org.apache.parquet.hadoop.ParquetFileWriter;
import org.apache.parquet.hadoop.ParquetOutputFormat;
import org.apache.parquet.hadoop.ParquetWriter;
import org.apache.parquet.hadoop.metadata.CompressionCodecName;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.schema.MessageType;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.parquet.ParquetOptions;
import org.apache.spark.sql.execution.datasources.parquet.ParquetReadSupport;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils;
import org.apache.spark.sql.execution.datasources.parquet.SparkToParquetSchemaConverter;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.SerializableConfiguration;

/**
 * A Parquet file of plain columns. Its pages are filled by {@link StagedColumn}; compression, the
 * pages' heads and indexes, row groups and the footer are Parquet's own library's. It stands for the
 * way by which Spark writes a row: value by value through levels that a plain column does not have.
 */
final class StagedFile {
    private static final String VERSION = "org.apache.spark.version";
    private static final int SHARE = 4;
    private static final String HADOOP = KafkaRanges.PREFIX + "hadoop.";

    private final Configuration conf;
    private final StructType columns;
    private final MessageType schema;
    private final CodecFactory codecs;
    private final CompressionCodecName codec;
    private final ParquetFileWriter out;
    private final long groupBytes;
    private final StagedColumn[] staged;
    private ColumnChunkPageWriteStore pages;
    private long rows;

    StagedFile(OutputFile file, StructType columns, Configuration conf) throws IOException {
        this.conf = conf;
        this.columns = columns;
        schema = new SparkToParquetSchemaConverter(conf).convert(columns);
        codec = CompressionCodecName.fromConf(conf.get(ParquetOutputFormat.COMPRESSION));
        codecs = new CodecFactory(conf, ParquetOutputFormat.getPageSize(conf));
        groupBytes = groupBytes(conf);
        out = new ParquetFileWriter(
            file, schema, ParquetFileWriter.Mode.CREATE, groupBytes,
            ParquetWriter.MAX_PADDING_SIZE_DEFAULT, indexed(),
            conf.getInt(ParquetOutputFormat.STATISTICS_TRUNCATE_LENGTH, Integer.MAX_VALUE), isChecked());
        out.start();
        staged = new StagedColumn[columns.size()];
        for (int i = 0; i < staged.length; i++) {
            ColumnDescriptor column = (ColumnDescriptor) schema.getColumns().get(i);
            staged[i] = new StagedColumn(column, columns.apply(i).dataType(), conf);
        }
        begin();
    }

    /** How files are written, as where Spark writes Parquet itself, and by the options. */
    static SerializableConfiguration settings(CaseInsensitiveStringMap options, StructType columns) {
        scala.collection.immutable.Map none =
            (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty();
        SparkSession session = (SparkSession) SparkSession.active();
        Configuration conf = session.sessionState().newHadoopConfWithOptions(none);
        Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry each = (Map.Entry) all.next();
            String name = (String) each.getKey();
            if (name.startsWith(HADOOP)) {
                conf.set(name.substring(HADOOP.length()), (String) each.getValue());
            }
        }
        try {
            Job job = Job.getInstance(conf);
            ParquetOptions parquet = new ParquetOptions(none, SQLConf.get());
            ParquetUtils.prepareWrite(SQLConf.get(), job, columns, parquet);
            return new SerializableConfiguration(job.getConfiguration());
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    /** As many as the setting says, unless those of all cores together would fill the heap. */
    static long groupBytes(Configuration conf) {
        Runtime runtime = Runtime.getRuntime();
        long share = runtime.maxMemory() / SHARE / runtime.availableProcessors();
        return Math.min(ParquetOutputFormat.getLongBlockSize(conf), share);
    }

    /** Why files of these settings are left to Spark; null if they are not. */
    static String leftToSpark(Configuration conf) {
        if (conf.get(EncryptionPropertiesFactory.CRYPTO_FACTORY_CLASS_PROPERTY_NAME) != null) {
            return "files that are encrypted";
        }
        String filters = "^" + ParquetOutputFormat.BLOOM_FILTER_ENABLED.replace(".", "[.]") + "(#.*)?$";
        if (conf.getValByRegex(filters).containsValue("true")) {
            return "files with Bloom filters";
        }
        if (SQLConf.get().maxRecordsPerFile() > 0) {
            return "files of so many rows";
        }
        WriterVersion version = ParquetOutputFormat.getWriterVersion(conf);
        return version == WriterVersion.PARQUET_1_0 ? null : "files of Parquet's second version";
    }

    private int indexed() {
        return conf.getInt(ParquetOutputFormat.COLUMN_INDEX_TRUNCATE_LENGTH, 64);
    }

    private boolean isChecked() {
        return ParquetOutputFormat.getPageWriteChecksumEnabled(conf);
    }

    private void begin() {
        rows = 0;
        pages = new ColumnChunkPageWriteStore(
            codecs.getCompressor(codec), schema, new HeapByteBufferAllocator(), indexed(), isChecked());
        for (int i = 0; i < staged.length; i++) {
            staged[i].begin(pages);
        }
    }

    /** A row of these columns; of each its own "places" says what of a row it is, see {@link Staging}. */
    void put(Object[] row, int[] places, Object whole, byte[] text) throws IOException {
        boolean isFuller = false;
        for (int i = 0; i < staged.length; i++) {
            int place = places[i];
            isFuller |= staged[i].put(place >= 0 ? row[place] : place == Staging.WHOLE ? whole : text);
        }
        rows++;
        if (isFuller && held() >= groupBytes) {
            end();
            begin();
        }
    }

    private long held() {
        long held = 0;
        for (int i = 0; i < staged.length; i++) {
            held += staged[i].held();
        }
        return held;
    }

    private void end() throws IOException {
        if (rows == 0) {
            return;
        }
        out.startBlock(rows);
        for (int i = 0; i < staged.length; i++) {
            staged[i].end();
        }
        pages.flushToFileWriter(out);
        out.endBlock();
        pages.close();
    }

    /** The file is whole. */
    void finish() throws IOException {
        end();
        HashMap said = new HashMap();
        said.put(ParquetReadSupport.SPARK_METADATA_KEY(), columns.json());
        said.put(VERSION, org.apache.spark.package$.MODULE$.SPARK_VERSION());
        out.end(said);
        codecs.release();
    }

    /** Whether or not it is whole, which then it never will be. */
    void close() throws IOException {
        out.close();
    }
}
