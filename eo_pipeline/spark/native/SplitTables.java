package eo.pipeline;

import java.io.Serializable;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What the options of {@link SplitRanges} say of its tables, by their numbers: those of table n begin
 * with "eo.table.n.".
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class SplitTables implements Serializable {
    final Conditions conditions;

    /** Of tables whose rows are their records; null: of others. */
    final Staging[] stagings;

    /** Of tables whose rows are made by Spark; null: of others. */
    final TablePlan[] plans;

    /** Numbers of what decodes: tables that take the same records, decoded alike, have one. */
    final int[] decoders;

    private final transient CaseInsensitiveStringMap[] options;
    private final transient QueryExecution[] queries;
    private final transient String[] whys;

    SplitTables(CaseInsensitiveStringMap all, SparkSession session) {
        conditions = Conditions.of(session, all.get(KafkaRanges.PREFIX + "conditions"));
        int many = all.getInt(KafkaRanges.PREFIX + "tables", 0);
        stagings = new Staging[many];
        plans = new TablePlan[many];
        decoders = new int[many];
        options = new CaseInsensitiveStringMap[many];
        queries = new QueryExecution[many];
        whys = new String[many];
        HashMap alike = new HashMap();
        for (int i = 0; i < many; i++) {
            options[i] = ofTable(all, KafkaRanges.PREFIX + "table." + i + ".");
            String decoded = told(i, "decoded");
            if (decoded != null && !alike.containsKey(decoded)) {
                alike.put(decoded, new Integer(alike.size()));
            }
            decoders[i] = decoded == null ? -1 : ((Integer) alike.get(decoded)).intValue();
            if (told(i, "view") != null) {
                queries[i] = StagedRows.plan(session, told(i, "view"));
                queries[i].optimizedPlan();
            } else if (decoded != null) {
                stagings[i] = new Staging(options[i]);
            }
        }
    }

    private static CaseInsensitiveStringMap ofTable(CaseInsensitiveStringMap options, String prefix) {
        HashMap own = new HashMap();
        Iterator all = options.asCaseSensitiveMap().entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry each = (Map.Entry) all.next();
            String name = (String) each.getKey();
            if (name.startsWith(prefix)) {
                own.put(KafkaRanges.PREFIX + name.substring(prefix.length()), each.getValue());
            }
        }
        return new CaseInsensitiveStringMap(own);
    }

    private String told(int number, String name) {
        return options[number].get(KafkaRanges.PREFIX + name);
    }

    /** The name of the {@link Totals} of a table's rows. */
    String rowTotals(int number) {
        return told(number, "row_totals");
    }

    /** How the records of a table are decoded; null: they are not. */
    Decoding decodingOf(int number) {
        if (stagings[number] != null) {
            return stagings[number].decoding;
        }
        return plans[number] == null ? null : plans[number].decoding;
    }

    /** One of the plans; null: there is none. */
    QueryExecution first() {
        QueryExecution first = null;
        for (int i = 0; i < queries.length && first == null; i++) {
            first = queries[i];
        }
        return first;
    }

    /** Makes the rows of each plan a share of the tasks that read, or says why they are not. */
    void plan(Split split) {
        for (int i = 0; i < queries.length; i++) {
            if (queries[i] != null) {
                plan(split, i, queries[i]);
            }
        }
    }

    private void plan(Split split, int number, QueryExecution query) {
        StructType read = split.readBy(number);
        StagedRows.Writer writer = StagedRows.Writer.of(options[number], query.analyzed().schema());
        whys[number] = writer.leftToSpark(query);
        if (whys[number] == null && (read == null || Split.isShuffled(query))) {
            whys[number] = "rows that more than the records of one task make";
        }
        RDD rows = whys[number] == null ? query.toRdd() : null;
        if (rows != null && !split.isTaskByTask(rows)) {
            whys[number] = "rows that are made by other tasks than those that read";
        }
        if (whys[number] == null) {
            writer.begin();
            plans[number] = new TablePlan(new Decoding(options[number]), read, rows, writer);
        }
    }

    /** Why a table is not staged by this job; null if it is, or nobody asked. */
    String why(int number) {
        return whys[number];
    }

    /** How Spark makes the rows of a table of decoded records, and what stages them. */
    static final class TablePlan implements Serializable {
        final Decoding decoding;
        final DecodedRow.Columns columns;
        final StructType read;
        final RDD rows;
        final StagedRows.Writer writer;

        TablePlan(Decoding decoding, StructType read, RDD rows, StagedRows.Writer writer) {
            this.decoding = decoding;
            this.columns = new DecodedRow.Columns(decoding.columns, read);
            this.read = read;
            this.rows = rows;
            this.writer = writer;
        }
    }
}
