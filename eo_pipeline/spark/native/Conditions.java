package eo.pipeline;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.BitwiseOr;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The tables that take a record, by a view whose columns are numbers with a bit for each of {@link
 * #BITS} tables: {@code if(condition, bit, 0) | ...}, see eo_pipeline/batch/split.py.
 *
 * Where many conditions compare one expression with texts, as those of tables that appear do, it is
 * evaluated once and its text looked up: of 200 conditions each record would try all.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Conditions implements Serializable {
    // as eo_pipeline/batch/split.py has it
    static final int BITS = 62;

    /** Comparisons of one expression that are tried one by one. */
    private static final int FEW = 8;

    private final int columns;
    private final Judge judge;

    /** Of each expression that is compared, tables' numbers by text; their columns come last. */
    private final HashMap[] numbers;

    private Conditions(int columns, Judge judge, HashMap[] numbers) {
        this.columns = columns;
        this.judge = judge;
        this.numbers = numbers;
    }

    static Conditions of(SparkSession session, String view) {
        Judge judge = Judge.of(session, view);
        Seq top = judge.top();
        ArrayList[] terms = new ArrayList[top.size()];
        ArrayList[] comparisons = new ArrayList[top.size()];
        LinkedHashMap alike = new LinkedHashMap();
        for (int i = 0; i < terms.length; i++) {
            terms[i] = new ArrayList();
            comparisons[i] = new ArrayList();
            Expression column = (Expression) top.apply(i);
            flatten(column instanceof Alias ? ((Alias) column).child() : column, terms[i]);
            for (int j = 0; j < terms[i].size(); j++) {
                Comparison comparison = Comparison.of((Expression) terms[i].get(j), i * BITS);
                comparisons[i].add(comparison);
                if (comparison != null) {
                    if (!alike.containsKey(comparison.key)) {
                        alike.put(comparison.key, new ArrayList());
                    }
                    ((List) alike.get(comparison.key)).add(comparison);
                }
            }
        }
        ArrayList made = new ArrayList();
        for (int i = 0; i < terms.length; i++) {
            made.add(rest(terms[i], comparisons[i], alike));
        }
        ArrayList numbers = new ArrayList();
        Iterator all = alike.values().iterator();
        while (all.hasNext()) {
            List group = (List) all.next();
            if (group.size() > FEW) {
                made.add(((Comparison) group.get(0)).compared());
                numbers.add(byText(group));
            }
        }
        Seq expressions = CollectionConverters.asScala((List) made).toSeq();
        return new Conditions(
            terms.length, judge.withTop(expressions), (HashMap[]) numbers.toArray(new HashMap[0]));
    }

    /** What is left of a column without the terms that are looked up. */
    private static Expression rest(ArrayList terms, ArrayList comparisons, Map alike) {
        Expression rest = null;
        for (int i = 0; i < terms.size(); i++) {
            Expression term = (Expression) terms.get(i);
            Comparison comparison = (Comparison) comparisons.get(i);
            if (comparison == null || ((List) alike.get(comparison.key)).size() <= FEW) {
                rest = rest == null ? term : new BitwiseOr(rest, term);
            }
        }
        return rest == null ? ((If) terms.get(0)).falseValue() : rest;
    }

    private static HashMap byText(List comparisons) {
        HashMap numbers = new HashMap();
        for (int i = 0; i < comparisons.size(); i++) {
            Comparison comparison = (Comparison) comparisons.get(i);
            add(numbers, comparison.text, comparison.number);
        }
        return numbers;
    }

    private static void add(HashMap numbers, Object text, int number) {
        int[] before = (int[]) numbers.get(text);
        int[] all = new int[before == null ? 1 : before.length + 1];
        if (before != null) {
            System.arraycopy(before, 0, all, 0, before.length);
        }
        all[all.length - 1] = number;
        numbers.put(text, all);
    }

    private static void flatten(Expression expression, ArrayList terms) {
        if (expression instanceof BitwiseOr) {
            flatten(((BitwiseOr) expression).left(), terms);
            flatten(((BitwiseOr) expression).right(), terms);
        } else {
            terms.add(expression);
        }
    }

    /** Writes the numbers of the tables that take "record"; how many they are. */
    int taking(InternalRow record, int[] taking) {
        InternalRow known = judge.of(record);
        int many = 0;
        for (int i = 0; i < columns; i++) {
            for (long bits = known.getLong(i); bits != 0; bits &= bits - 1) {
                taking[many++] = i * BITS + Long.numberOfTrailingZeros(bits);
            }
        }
        for (int i = 0; i < numbers.length; i++) {
            if (!known.isNullAt(columns + i)) {
                int[] found = (int[]) numbers[i].get(known.getUTF8String(columns + i));
                for (int j = 0; found != null && j < found.length; j++) {
                    taking[many++] = found[j];
                }
            }
        }
        return many;
    }

    /** A table's condition: "left" is "text", and "others" are true, if there are some. */
    static class Comparison {
        final Expression left;
        final Object text;
        final Expression others;
        final int number;

        /** Equal where left and others are. */
        final ArrayList key = new ArrayList();

        private Comparison(Expression left, Object text, Expression others, int number) {
            this.left = left;
            this.text = text;
            this.others = others;
            this.number = number;
            key.add(left.canonicalized());
            key.add(others == null ? null : others.canonicalized());
        }

        /** That of a term; null: it is something else. "first" is the number of the lowest bit. */
        static Comparison of(Expression term, int first) {
            if (!(term instanceof If) || !(((If) term).trueValue() instanceof Literal)) {
                return null;
            }
            ArrayList conditions = new ArrayList();
            split(((If) term).predicate(), conditions);
            // those before the last one are evaluated before it, and may keep it from failing
            Expression last = (Expression) conditions.get(conditions.size() - 1);
            if (!isOfText(last)) {
                return null;
            }
            Expression others = null;
            for (int i = 0; i < conditions.size() - 1; i++) {
                Expression condition = (Expression) conditions.get(i);
                others = others == null ? condition : new And(others, condition);
            }
            EqualTo comparison = (EqualTo) last;
            Object text = ((Literal) comparison.right()).value();
            long bit = ((Long) ((Literal) ((If) term).trueValue()).value()).longValue();
            return new Comparison(comparison.left(), text, others, first + Long.numberOfTrailingZeros(bit));
        }

        /** Null and false are alike. */
        private static void split(Expression condition, ArrayList conditions) {
            if (condition instanceof Coalesce) {
                Seq parts = ((Coalesce) condition).children();
                if (parts.size() == 2 && isFalse((Expression) parts.apply(1))) {
                    split((Expression) parts.apply(0), conditions);
                    return;
                }
            }
            if (condition instanceof And) {
                split(((And) condition).left(), conditions);
                split(((And) condition).right(), conditions);
            } else {
                conditions.add(condition);
            }
        }

        private static boolean isFalse(Expression condition) {
            return condition instanceof Literal && Boolean.FALSE.equals(((Literal) condition).value());
        }

        private static boolean isOfText(Expression condition) {
            if (!(condition instanceof EqualTo)) {
                return false;
            }
            Expression right = ((EqualTo) condition).right();
            return DataTypes.StringType.equals(((EqualTo) condition).left().dataType())
                && right instanceof Literal && ((Literal) right).value() instanceof UTF8String;
        }

        /** The text that is looked up; null if the other conditions are not true. */
        Expression compared() {
            return others == null ? left : new If(others, left, new Literal(null, DataTypes.StringType));
        }
    }
}
