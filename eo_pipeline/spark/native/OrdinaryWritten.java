package eo.pipeline;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Reads Avro and Protobuf in which there is nothing to judge, by their writer's schema: of the schemas
 * that {@link AvroPlan} and {@link ProtobufPlan} take, whole, and with nothing behind them.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class OrdinaryWritten implements Ordinary {
    private final String told;
    private transient Writer[] writers;
    private transient UTF8String header;
    private transient Writer last;

    /**
     * "told", in JSON: "columns", how many there are; "header", the one that names a schema, if any
     * does; and of each of the "writers" its "index", the "key" in front of its records in
     * hexadecimal digits, and either the "writer" and "reader" schemas and the names of "unknown"
     * fields, or the "message" of {@link ProtobufPlan}.
     */
    OrdinaryWritten(String told) {
        this.told = told;
    }

    /** The index of the writer of the last record that was read. */
    int writer() {
        return last.index;
    }

    public Object[] values(byte[] value, InternalRow record) throws IOException {
        if (writers == null) {
            parse();
        }
        ArrayData headers = header == null ? null : record.getArray(KafkaRanges.HEADERS);
        if (headers != null && names(headers)) {
            return null;
        }
        Writer found = last != null && last.wrote(value) ? last : null;
        for (int i = 0; found == null && i < writers.length; i++) {
            if (writers[i].wrote(value)) {
                found = writers[i];
            }
        }
        if (found == null || found.plan == null) {
            return null;
        }
        last = found;
        return found.plan.read(value, found.key.length);
    }

    private boolean names(ArrayData headers) {
        for (int i = 0; i < headers.numElements(); i++) {
            InternalRow each = headers.getStruct(i, 2);
            if (!each.isNullAt(0) && each.getUTF8String(0).equals(header)) {
                return true;
            }
        }
        return false;
    }

    private void parse() throws IOException {
        JsonNode node = (JsonNode) new ObjectMapper().readTree(told);
        header = node.get("header").isNull() ? null : UTF8String.fromString(node.get("header").asText());
        JsonNode each = node.get("writers");
        Writer[] parsed = new Writer[each.size()];
        for (int i = 0; i < parsed.length; i++) {
            parsed[i] = new Writer((JsonNode) each.get(i), node.get("columns").asInt());
        }
        writers = parsed;
    }

    private static final class Writer {
        final int index;
        final byte[] key;
        final Plan plan;

        Writer(JsonNode told, int columns) {
            index = told.get("index").asInt();
            String digits = told.get("key").asText();
            key = new byte[digits.length() / 2];
            for (int i = 0; i < key.length; i++) {
                key[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
            }
            plan = told.has("message")
                ? (Plan) new ProtobufPlan(told.get("message"))
                : AvroPlan.of(told.get("writer").asText(), told.get("reader").asText(),
                    names(told.get("unknown")), columns);
        }

        private static ArrayData names(JsonNode told) {
            Object[] names = new Object[told.size()];
            for (int i = 0; i < names.length; i++) {
                names[i] = UTF8String.fromString(((JsonNode) told.get(i)).asText());
            }
            return names.length == 0 ? null : new GenericArrayData(names);
        }

        boolean wrote(byte[] value) {
            if (value.length < key.length) {
                return false;
            }
            for (int i = key.length - 1; i >= 0; i--) {
                if (value[i] != key[i]) {
                    return false;
                }
            }
            return true;
        }
    }
}
