package eo.pipeline;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.parquet.bytes.BytesInput;
import org.apache.parquet.bytes.BytesUtils;
import org.apache.parquet.bytes.HeapByteBufferAllocator;
import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.column.Encoding;
import org.apache.parquet.column.page.DictionaryPage;
import org.apache.parquet.column.page.PageWriter;
import org.apache.parquet.column.statistics.Statistics;
import org.apache.parquet.column.values.rle.RunLengthBitPackingHybridEncoder;
import org.apache.parquet.hadoop.ColumnChunkPageWriteStore;
import org.apache.parquet.hadoop.ParquetOutputFormat;
import org.apache.spark.sql.types.DataType;

/**
 * One column of a {@link StagedFile}: pages of its values, as Parquet's format has them (Apache
 * Parquet, "Encodings": PLAIN; PLAIN_DICTIONARY, with indexes by its hybrid of run lengths and packed
 * bits; levels by the same, a length in front).
 *
 * A column begins with a dictionary, and gives it up for good where that is longer than the setting
 * says, where nearly none of its first values came again, or where the first page is no shorter for
 * it.
 */
final class StagedColumn {
    private static final int MANY = 4096;
    private static final double NEARLY_ALL = 0.95;
    private static final int LENGTH = 4;
    private static final int SLAB = 256;

    private final ColumnDescriptor column;
    private final PlainValues kind;
    private final boolean isOptional;
    private final boolean hasDictionary;
    private final boolean hasBounds;
    private final int dictionaryBytes;
    private final int pageBytes;
    private final int pageRows;
    private PageWriter pages;

    // of the page
    private final PlainBuffer plain = new PlainBuffer();
    private RunLengthBitPackingHybridEncoder levels;
    private int values;
    private int nulls;
    private int[] indexes = new int[SLAB];
    private int indexed;
    private int unpacked;

    // of the row group; no numbers: its values are no longer looked up
    private HashMap numbers;
    private ArrayList distinct;
    private int distinctBytes;
    private boolean isUsed;
    private Object last;
    private int lastNumber;

    StagedColumn(ColumnDescriptor column, DataType type, Configuration conf) {
        this.column = column;
        kind = PlainValues.of(type, column.getPrimitiveType());
        isOptional = column.getMaxDefinitionLevel() > 0;
        String name = column.getPath()[0];
        hasDictionary = kind.comesAgain() && told(conf, ParquetOutputFormat.ENABLE_DICTIONARY, name, true);
        hasBounds = !(kind instanceof PlainValues.Bytes)
            && told(conf, ParquetOutputFormat.STATISTICS_ENABLED, name, true);
        dictionaryBytes = conf.getInt(ParquetOutputFormat.DICTIONARY_PAGE_SIZE, 1 << 20);
        pageBytes = ParquetOutputFormat.getPageSize(conf);
        pageRows = conf.getInt(ParquetOutputFormat.PAGE_ROW_COUNT_LIMIT, 20000);
    }

    private static boolean told(Configuration conf, String setting, String name, boolean otherwise) {
        return conf.getBoolean(setting + "#" + name, conf.getBoolean(setting, otherwise));
    }

    /** A row group. */
    void begin(ColumnChunkPageWriteStore store) {
        pages = store.getPageWriter(column);
        numbers = hasDictionary ? new HashMap() : null;
        distinct = new ArrayList();
        distinctBytes = 0;
        isUsed = false;
        last = null;
    }

    /** Whether that filled a page. */
    boolean put(Object value) throws IOException {
        if (value == null) {
            putNull();
        } else {
            values++;
            if (levels != null) {
                levels.writeInt(1);
            }
            if (numbers != null) {
                number(value);
            } else {
                kind.put(value, plain);
                if (hasBounds) {
                    kind.bound(value);
                }
            }
        }
        boolean isFull = plain.size() >= pageBytes || values + nulls >= pageRows;
        if (isFull) {
            page();
        }
        return isFull;
    }

    private void putNull() throws IOException {
        if (levels == null) {
            levels = encoder(1);
            for (int i = 0; i < values; i++) {
                levels.writeInt(1);
            }
        }
        levels.writeInt(0);
        nulls++;
    }

    private RunLengthBitPackingHybridEncoder encoder(int width) {
        return new RunLengthBitPackingHybridEncoder(width, SLAB, pageBytes, new HeapByteBufferAllocator());
    }

    private void number(Object value) {
        if (value != last) {
            Object found = numbers.get(value);
            if (found == null) {
                Object kept = kind.kept(value);
                found = new Integer(distinct.size());
                numbers.put(kept, found);
                distinct.add(kept);
                distinctBytes += kind.length(kept);
            }
            last = value;
            lastNumber = ((Integer) found).intValue();
            if (hasBounds) {
                kind.bound(value);
            }
        }
        if (indexed == indexes.length) {
            indexes = Arrays.copyOf(indexes, 2 * indexed);
        }
        indexes[indexed++] = lastNumber;
        unpacked += kind.length(value);
        boolean isNew = !isUsed && indexed == MANY && distinct.size() > NEARLY_ALL * MANY;
        if (isNew || distinctBytes > dictionaryBytes) {
            giveUp();
        }
    }

    private void giveUp() {
        numbers = null;
        for (int i = 0; i < indexed; i++) {
            kind.put(distinct.get(indexes[i]), plain);
        }
        indexed = 0;
        last = null;
    }

    /** Bytes that are held, of pages and of what is in none yet. */
    long held() {
        return pages.getMemSize() + plain.size() + LENGTH * indexed;
    }

    private void page() throws IOException {
        if (values + nulls == 0) {
            return;
        }
        RunLengthBitPackingHybridEncoder packed = null;
        Encoding encoding = Encoding.PLAIN;
        BytesInput body = null;
        if (numbers != null) {
            int width = BytesUtils.getWidthFromMaxInt(distinct.size() - 1);
            packed = encoder(width);
            for (int i = 0; i < indexed; i++) {
                packed.writeInt(indexes[i]);
            }
            body = BytesInput.concat(new BytesInput[] {
                BytesInput.from(new byte[] {(byte) width}), packed.toBytes()});
            if (isUsed || distinctBytes + body.size() < unpacked) {
                encoding = Encoding.PLAIN_DICTIONARY;
                isUsed = true;
            } else {
                giveUp();
            }
        }
        if (encoding == Encoding.PLAIN) {
            body = plain.bytes();
        }
        Encoding ofLevels = isOptional ? Encoding.RLE : Encoding.BIT_PACKED;
        BytesInput whole = isOptional ? BytesInput.concat(new BytesInput[] {levels(), body}) : body;
        int rows = values + nulls;
        pages.writePage(whole, rows, rows, statistics(), Encoding.BIT_PACKED, ofLevels, encoding);
        if (packed != null) {
            packed.close();
        }
        clear();
    }

    private BytesInput levels() throws IOException {
        BytesInput bytes = levels == null
            ? BytesInput.concat(new BytesInput[] {
                BytesInput.fromUnsignedVarInt(values << 1), BytesInput.from(new byte[] {1})})
            : levels.toBytes();
        return BytesInput.concat(new BytesInput[] {BytesInput.fromInt((int) bytes.size()), bytes});
    }

    private Statistics statistics() {
        if (!hasBounds) {
            return Statistics.noopStats(column.getPrimitiveType());
        }
        Statistics made = Statistics.createStats(column.getPrimitiveType());
        if (values > 0) {
            kind.tell(made);
        }
        made.incrementNumNulls(nulls);
        return made;
    }

    private void clear() {
        if (levels != null) {
            levels.close();
            levels = null;
        }
        plain.clear();
        kind.forget();
        values = 0;
        nulls = 0;
        indexed = 0;
        unpacked = 0;
        last = null;
    }

    /** No more rows in this group. */
    void end() throws IOException {
        page();
        if (isUsed) {
            PlainBuffer all = new PlainBuffer();
            for (int i = 0; i < distinct.size(); i++) {
                kind.put(distinct.get(i), all);
            }
            pages.writeDictionaryPage(
                new DictionaryPage(all.bytes(), distinct.size(), Encoding.PLAIN_DICTIONARY));
        }
    }
}
