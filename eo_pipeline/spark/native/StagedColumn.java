package eo.pipeline;

import java.io.IOException;
import java.util.Arrays;
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

    // of the row group
    private Dictionary dictionary;
    private boolean looksUp;
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
        dictionary = new Dictionary();
        looksUp = hasDictionary;
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
            if (looksUp) {
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
            lastNumber = dictionary.number(value);
            if (lastNumber < 0) {
                Object kept = kind.kept(value);
                lastNumber = dictionary.add(kept);
                distinctBytes += kind.length(kept);
            }
            last = value;
            if (hasBounds) {
                kind.bound(value);
            }
        }
        if (indexed == indexes.length) {
            indexes = Arrays.copyOf(indexes, 2 * indexed);
        }
        indexes[indexed++] = lastNumber;
        unpacked += kind.length(value);
        boolean isNew = !isUsed && indexed == MANY && dictionary.size() > NEARLY_ALL * MANY;
        if (isNew || distinctBytes > dictionaryBytes) {
            giveUp();
        }
    }

    private void giveUp() {
        for (int i = 0; i < indexed; i++) {
            kind.put(dictionary.get(indexes[i]), plain);
        }
        looksUp = false;
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
        if (looksUp) {
            int width = BytesUtils.getWidthFromMaxInt(dictionary.size() - 1);
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
            for (int i = 0; i < dictionary.size(); i++) {
                kind.put(dictionary.get(i), all);
            }
            pages.writeDictionaryPage(
                new DictionaryPage(all.bytes(), dictionary.size(), Encoding.PLAIN_DICTIONARY));
        }
    }

    /** Values by their numbers, and numbers by their values; without an object for each number. */
    private static final class Dictionary {
        private static final int FEW = 64;
        private static final int GOLDEN = 0x9e3779b9; // 2^32 by the golden ratio: spreads any hash

        private Object[] values = new Object[FEW];
        private int[] hashes = new int[FEW];
        private int[] slots = new int[2 * FEW]; // a number and one; zero: free
        private int shift = Integer.numberOfLeadingZeros(2 * FEW) + 1;
        private int size;

        int size() {
            return size;
        }

        Object get(int number) {
            return values[number];
        }

        /** That of the value; -1: it has none. */
        int number(Object value) {
            int hash = value.hashCode() * GOLDEN;
            for (int at = hash >>> shift; slots[at] != 0; at = at + 1 & slots.length - 1) {
                int number = slots[at] - 1;
                if (hashes[number] == hash && value.equals(values[number])) {
                    return number;
                }
            }
            return -1;
        }

        /** The number that a new value gets. */
        int add(Object value) {
            if (size == values.length) {
                grow();
            }
            values[size] = value;
            hashes[size] = value.hashCode() * GOLDEN;
            place(size);
            return size++;
        }

        private void place(int number) {
            int at = hashes[number] >>> shift;
            while (slots[at] != 0) {
                at = at + 1 & slots.length - 1;
            }
            slots[at] = number + 1;
        }

        private void grow() {
            values = Arrays.copyOf(values, 2 * size);
            hashes = Arrays.copyOf(hashes, 2 * size);
            slots = new int[4 * size];
            shift--;
            for (int i = 0; i < size; i++) {
                place(i);
            }
        }
    }
}
