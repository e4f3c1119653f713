package eo.pipeline;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BindReferences$;
import org.apache.spark.sql.catalyst.expressions.InterpretedUnsafeProjection$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.package$AttributeSeq;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.SparkSession;
import scala.collection.immutable.Seq;

/**
 * What Spark's own expressions make of one record: those of a temporary view, which is a chain of
 * projections of one source of {@link DecodedRanges#SHAPE}'s columns, evaluated where records are
 * read.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Judge implements Serializable {
    private static final Map KNOWN = new WeakHashMap();

    /** So many odd records of a task are judged without code made for it. */
    private static final int INTERPRETED_MAX = 10000;

    private final Seq[] expressions;
    private final Seq[] inputs;
    private final FieldTexts fields;
    private transient UnsafeProjection[] compiled;
    private transient UnsafeProjection[] interpreted;
    private transient int interpretedCount;

    private Judge(Seq[] expressions, Seq[] inputs, FieldTexts fields) {
        this.expressions = expressions;
        this.inputs = inputs;
        this.fields = fields;
    }

    /** Of the view "name"; it is looked for once in each session. */
    static Judge of(SparkSession session, String name) {
        synchronized (KNOWN) {
            Map known = (Map) KNOWN.get(session);
            if (known == null) {
                known = new HashMap();
                KNOWN.put(session, known);
            }
            Judge found = (Judge) known.get(name);
            if (found == null) {
                found = made(session.table(name).queryExecution().optimizedPlan());
                known.put(name, found);
            }
            return found;
        }
    }

    private static Judge made(LogicalPlan plan) {
        ArrayList expressions = new ArrayList();
        ArrayList inputs = new ArrayList();
        LogicalPlan rest = plan;
        while (rest instanceof Project) {
            expressions.add(0, ((Project) rest).projectList());
            rest = ((Project) rest).child();
            inputs.add(0, rest.output());
        }
        if (rest.children().nonEmpty()) {
            throw new IllegalArgumentException("records are judged by projections alone, not by " + rest);
        }
        Seq[] made = (Seq[]) expressions.toArray(new Seq[0]);
        Seq[] of = (Seq[]) inputs.toArray(new Seq[0]);
        FieldTexts fields = FieldTexts.in(made, of);
        return new Judge(made, of, fields);
    }

    /** The expressions of the view's columns. */
    Seq top() {
        return expressions[expressions.length - 1];
    }

    /** A copy with what {@link Conditions} makes of the columns' expressions. */
    Judge withTop(Seq top) {
        Seq[] others = (Seq[]) expressions.clone();
        others[others.length - 1] = top;
        return new Judge(others, inputs, fields);
    }

    /** The view's columns of a record; the row is used again for the next one. */
    InternalRow of(InternalRow record) {
        if (compiled == null) {
            compiled = projections(false);
        }
        return projected(compiled, record);
    }

    /**
     * The same of one of the task's records that are odd. The first of them are interpreted: to make
     * and compile code takes a new process half a second.
     */
    InternalRow ofOdd(InternalRow record) {
        if (interpretedCount == INTERPRETED_MAX) {
            return of(record);
        }
        if (interpreted == null) {
            interpreted = projections(true);
        }
        interpretedCount++;
        return projected(interpreted, record);
    }

    private UnsafeProjection[] projections(boolean areInterpreted) {
        UnsafeProjection[] made = new UnsafeProjection[expressions.length];
        for (int i = 0; i < made.length; i++) {
            Seq bound = BindReferences$.MODULE$.bindReferences(
                expressions[i], new package$AttributeSeq(inputs[i]));
            made[i] = areInterpreted
                ? InterpretedUnsafeProjection$.MODULE$.createProjection(bound)
                : UnsafeProjection.create(bound);
            made[i].initialize(0);
        }
        return made;
    }

    private InternalRow projected(UnsafeProjection[] projections, InternalRow record) {
        InternalRow made = fields == null ? record : fields.of(record);
        for (int i = 0; i < projections.length; i++) {
            made = projections[i].apply(made);
        }
        return made;
    }
}
