package eo.pipeline;

import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Readers of ranges by Spark's own consumers, whose records are rows as they are: Spark's readers
 * copy each record into a row, with its headers, and compile a projection for each range.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class KafkaReaders implements PartitionReaderFactory {
    private final PartitionReaderFactory sparks;

    private KafkaReaders(PartitionReaderFactory sparks) {
        this.sparks = sparks;
    }

    static PartitionReaderFactory of(Batch kafka) {
        return new KafkaReaders(kafka.createReaderFactory());
    }

    public PartitionReader createReader(InputPartition range) {
        Connector connector = Connector.of(range.getClass());
        return connector == null ? sparks.createReader(range) : new Reader(connector, range);
    }

    /** Of one range. A row is used again for the next record; its bytes are not. */
    private static final class Reader implements PartitionReader {
        private final Connector connector;
        private final Object consumer;
        private final long until;
        private final long timeoutMs;
        private final boolean failsOnLoss;
        private final Record row;
        private long next;

        Reader(Connector connector, InputPartition range) {
            this.connector = connector;
            Object offsets = connector.offsets.apply(range);
            next = connector.from.applyAsLong(offsets);
            until = connector.until.applyAsLong(offsets);
            timeoutMs = connector.timeoutMs.applyAsLong(range);
            failsOnLoss = connector.failsOnLoss.test(range);
            row = new Record(connector, offsets);
            Object partition = connector.topicPartition.apply(offsets);
            consumer = connector.acquire.apply(partition, connector.settings.apply(range));
        }

        public boolean next() {
            if (next >= until) {
                return false;
            }
            row.record = connector.take.take(consumer, next, until, timeoutMs, failsOnLoss);
            if (row.record == null) {
                return false;
            }
            next = connector.offset.applyAsLong(row.record) + 1;
            return true;
        }

        public Object get() {
            return row;
        }

        public void close() {
            connector.release.accept(consumer);
        }
    }

    /** A record with the columns of Spark's Kafka source. */
    private static final class Record extends GenericInternalRow {
        private static final int MANY = 8;
        private static final long LAST_MILLIS = Long.MAX_VALUE / 1000;

        /** Times from here on are the same in all calendars; a record without one has this. */
        private static final long SINCE = -1;

        private final Connector connector;
        private final UTF8String topic;
        private final Integer partition;
        Object record;

        Record(Connector connector, Object offsets) {
            super(MANY);
            this.connector = connector;
            topic = UTF8String.fromString((String) connector.topic.apply(offsets));
            partition = new Integer(connector.partition.applyAsInt(offsets));
        }

        public Object genericGet(int place) {
            switch (place) {
                case KafkaRanges.KEY:
                    return connector.key.apply(record);
                case KafkaRanges.VALUE:
                    return connector.value.apply(record);
                case KafkaRanges.TOPIC:
                    return topic;
                case KafkaRanges.PARTITION:
                    return partition;
                case KafkaRanges.OFFSET:
                    return new Long(connector.offset.applyAsLong(record));
                case KafkaRanges.TIMESTAMP:
                    return micros(connector.timestamp.applyAsLong(record));
                case KafkaRanges.TIMESTAMP_TYPE:
                    // its id: Kafka's enumeration begins with -1, for none
                    return new Integer(((Enum) connector.timestampType.apply(record)).ordinal() - 1);
                default:
                    return headers();
            }
        }

        /** As Spark has it; null where that overflows, as where the pipeline's process reads (fetch.py). */
        private static Long micros(long millis) {
            if (millis > LAST_MILLIS || millis < -LAST_MILLIS) {
                return null;
            }
            if (millis >= SINCE) {
                return new Long(millis * 1000);
            }
            // Spark loads tables of calendars for this
            return new Long(DateTimeUtils.fromJavaTimestamp(new Timestamp(millis)));
        }

        private Object headers() {
            ArrayList all = new ArrayList();
            Iterator each = ((Iterable) connector.headers.apply(record)).iterator();
            while (each.hasNext()) {
                Object header = each.next();
                UTF8String key = UTF8String.fromString((String) connector.headerKey.apply(header));
                all.add(new GenericInternalRow(new Object[] {key, connector.headerValue.apply(header)}));
            }
            return all.isEmpty() ? null : new GenericArrayData(all.toArray());
        }
    }
}
