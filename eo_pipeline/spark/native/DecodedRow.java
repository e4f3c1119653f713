package eo.pipeline;

import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Good records as rows of the columns that are read: those of their values, and "_kafka". A row is
 * used again for the next record.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class DecodedRow {
    // 0001-01-01 and the last microsecond of 9999-12-31
    private static final long FIRST_MICROS = -62135596800000000L;
    private static final long LAST_MICROS = 253402300799999999L;

    private final Columns columns;
    private final Object[] row;
    private final Object[] coordinates;
    private final InternalRow made;
    private UTF8String topic;
    private Integer partition;

    DecodedRow(Columns columns) {
        this.columns = columns;
        row = new Object[columns.places.length];
        coordinates = new Object[columns.ofKafka.length];
        made = new GenericInternalRow(row);
        for (int i = 0; i < row.length; i++) {
            if (columns.places[i] < 0) {
                row[i] = new GenericInternalRow(coordinates);
            }
        }
    }

    /** The next record is the first one of a range. */
    void begin() {
        topic = null;
    }

    InternalRow of(Object[] values, InternalRow record) {
        for (int i = 0; i < row.length; i++) {
            int place = columns.places[i];
            if (place >= 0) {
                row[i] = values[place];
            }
        }
        for (int i = 0; i < coordinates.length; i++) {
            coordinates[i] = ofKafka(columns.ofKafka[i], record);
        }
        return made;
    }

    private Object ofKafka(int place, InternalRow record) {
        switch (place) {
            case KafkaRanges.TOPIC:
                if (topic == null) {
                    topic = record.getUTF8String(place).copy();
                }
                return topic;
            case KafkaRanges.PARTITION:
                if (partition == null || partition.intValue() != record.getInt(place)) {
                    partition = new Integer(record.getInt(place));
                }
                return partition;
            case KafkaRanges.OFFSET:
                return new Long(record.getLong(place));
            case KafkaRanges.TIMESTAMP:
                long micros = record.getLong(place);
                boolean isKept = micros >= FIRST_MICROS && micros <= LAST_MICROS;
                return isKept && !record.isNullAt(place) ? new Long(micros) : null;
            case KafkaRanges.TIMESTAMP_TYPE:
                return new Integer(record.getInt(place));
            case KafkaRanges.HEADERS:
                return record.getArray(place);
            default:
                return record.getBinary(place);
        }
    }

    /** Which columns are read, and of what. */
    static final class Columns implements Serializable {
        static final String KAFKA = "_kafka";

        private static final String[] NAMES = {
            "key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers"};

        /** Of the columns that are read: their places among those of the value; -1: Kafka's. */
        private final int[] places;

        /** Of Kafka's columns that are read: their places in Kafka's record. */
        private final int[] ofKafka;

        Columns(StructType decoded, StructType read) {
            places = new int[read.size()];
            int[] found = new int[0];
            for (int i = 0; i < places.length; i++) {
                boolean isKafka = read.apply(i).name().equals(KAFKA);
                places[i] = isKafka ? -1 : decoded.fieldIndex(read.apply(i).name());
                if (isKafka) {
                    found = kafkas((StructType) read.apply(i).dataType());
                }
            }
            ofKafka = found;
        }

        private static int[] kafkas(StructType wanted) {
            int[] found = new int[wanted.size()];
            for (int i = 0; i < found.length; i++) {
                found[i] = Arrays.asList(NAMES).indexOf(wanted.apply(i).name());
            }
            return found;
        }

        /** Whether a column has the records' headers. */
        static boolean readsHeaders(StructType read) {
            boolean found = false;
            for (int i = 0; i < read.size(); i++) {
                if (read.apply(i).name().equals(KAFKA)) {
                    StructType kafka = (StructType) read.apply(i).dataType();
                    found |= Arrays.asList(kafka.fieldNames()).contains("headers");
                }
            }
            return found;
        }
    }
}
