package eo.pipeline;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.WeakHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.util.TaskCompletionListener;
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

    /** Projections that ended tasks left for the next ones, lists by {@link #id}: those of hundreds
     * of conditions take a fifth of a second to make. */
    private static final Map IDLE = new HashMap();
    private static final int IDLE_MAX = 16;

    private final String id;
    private final Seq[] expressions;
    private final Seq[] inputs;
    private transient UnsafeProjection[] projections;

    private Judge(String id, Seq[] expressions, Seq[] inputs) {
        this.id = id;
        this.expressions = expressions;
        this.inputs = inputs;
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
        return new Judge(
            UUID.randomUUID().toString(), (Seq[]) expressions.toArray(new Seq[0]), (Seq[]) inputs.toArray(new Seq[0]));
    }

    /** The expressions of the view's columns. */
    Seq top() {
        return expressions[expressions.length - 1];
    }

    /** A copy with what {@link Conditions} makes of the columns' expressions. */
    Judge withTop(Seq top) {
        Seq[] others = (Seq[]) expressions.clone();
        others[others.length - 1] = top;
        return new Judge(id + " " + top.size(), others, inputs);
    }

    /** The view's columns of a record; the row is used again for the next one. */
    InternalRow of(InternalRow record) {
        if (projections == null) {
            projections = taken();
        }
        InternalRow made = record;
        for (int i = 0; i < projections.length; i++) {
            made = projections[i].apply(made);
        }
        return made;
    }

    /** Projections for one reader alone, until its task ends. */
    private UnsafeProjection[] taken() {
        UnsafeProjection[] taken = idle();
        if (taken == null) {
            taken = new UnsafeProjection[expressions.length];
            for (int i = 0; i < taken.length; i++) {
                taken[i] = UnsafeProjection.create(expressions[i], inputs[i]);
                taken[i].initialize(0);
            }
        }
        TaskContext.get().addTaskCompletionListener(new Return(id, taken));
        return taken;
    }

    private UnsafeProjection[] idle() {
        synchronized (IDLE) {
            ArrayList idle = (ArrayList) IDLE.get(id);
            return idle == null || idle.isEmpty() ? null : (UnsafeProjection[]) idle.remove(idle.size() - 1);
        }
    }

    /** Leaves projections for the next task. */
    static class Return implements TaskCompletionListener {
        private final String id;
        private final UnsafeProjection[] projections;

        Return(String id, UnsafeProjection[] projections) {
            this.id = id;
            this.projections = projections;
        }

        public void onTaskCompletion(TaskContext context) {
            synchronized (IDLE) {
                if (IDLE.size() >= IDLE_MAX && !IDLE.containsKey(id)) {
                    IDLE.clear();
                }
                ArrayList idle = (ArrayList) IDLE.get(id);
                if (idle == null) {
                    idle = new ArrayList();
                    IDLE.put(id, idle);
                }
                idle.add(projections);
            }
        }
    }
}
