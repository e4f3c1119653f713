package eo.pipeline;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetJsonObject;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What get_json_object makes of fields of a record's value, {@code $.name}, where {@link
 * OrdinaryScanner} reads them all in one pass: columns before those of a record, which may lack its
 * headers. Of any other record Spark's function makes it.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class FieldTexts extends scala.runtime.AbstractPartialFunction implements Serializable {
    private static final String PATH = "\\$\\.[A-Za-z_][A-Za-z0-9_]*";

    /** What is a record's value, and its text. */
    private final transient HashSet values = new HashSet();

    private final transient LinkedHashMap texts = new LinkedHashMap();
    private final transient AttributeReference isKnown = column("known", DataTypes.BooleanType);

    private byte[][] names;
    private transient Object[] row;
    private transient JoinedRow joined;

    private FieldTexts() {
    }

    /** Puts these columns into a chain of projections; null: it has no such fields. */
    static FieldTexts in(Seq[] expressions, Seq[] inputs) {
        FieldTexts of = new FieldTexts();
        of.values.add(((AttributeReference) inputs[0].apply(KafkaRanges.VALUE)).exprId());
        for (int i = 0; i < expressions.length; i++) {
            expressions[i] = of.replaced(expressions[i]);
        }
        if (of.texts.isEmpty()) {
            return null;
        }
        for (int i = 0; i < expressions.length; i++) {
            inputs[i] = of.before(inputs[i]);
            if (i < expressions.length - 1) {
                expressions[i] = of.before(expressions[i]);
            }
        }
        of.names = new byte[of.texts.size()][];
        for (int i = 0; i < of.names.length; i++) {
            of.names[i] = OrdinaryScanner.quoted((String) of.texts.keySet().toArray()[i]);
        }
        return of;
    }

    private static AttributeReference column(String name, DataType type) {
        return new AttributeReference(
            name, type, true, Metadata.empty(), NamedExpression$.MODULE$.newExprId(),
            CollectionConverters.asScala(new ArrayList()).toSeq());
    }

    private Seq replaced(Seq expressions) {
        ArrayList made = new ArrayList();
        for (int i = 0; i < expressions.size(); i++) {
            Expression each = (Expression) expressions.apply(i);
            if (each instanceof Alias && isValue(((Alias) each).child())) {
                values.add(((Alias) each).exprId());
            }
            made.add(each.transformUp(this));
        }
        return CollectionConverters.asScala(made).toSeq();
    }

    private boolean isValue(Expression expression) {
        Expression of = expression instanceof Cast ? ((Cast) expression).child() : expression;
        return of instanceof AttributeReference && values.contains(((AttributeReference) of).exprId());
    }

    public boolean isDefinedAt(Object node) {
        if (!(node instanceof GetJsonObject)) {
            return false;
        }
        Expression path = ((GetJsonObject) node).path();
        return isValue(((GetJsonObject) node).json())
            && DataTypes.StringType.equals(((GetJsonObject) node).dataType())
            && path instanceof Literal && String.valueOf(((Literal) path).value()).matches(PATH);
    }

    public Object applyOrElse(Object node, scala.Function1 other) {
        if (!isDefinedAt(node)) {
            return other.apply(node);
        }
        String name = ((Literal) ((GetJsonObject) node).path()).value().toString().substring(2);
        if (!texts.containsKey(name)) {
            texts.put(name, column(name, DataTypes.StringType));
        }
        return new If(isKnown, (Expression) texts.get(name), (Expression) node);
    }

    private Seq before(Seq columns) {
        ArrayList all = new ArrayList();
        all.add(isKnown);
        all.addAll(texts.values());
        all.addAll(CollectionConverters.asJava(columns));
        return CollectionConverters.asScala(all).toSeq();
    }

    /** A record behind its columns. */
    InternalRow of(InternalRow record) {
        if (row == null) {
            row = new Object[names.length + 1];
            joined = new JoinedRow().withLeft(new GenericInternalRow(row));
        }
        java.util.Arrays.fill(row, null);
        boolean isKnown = !record.isNullAt(KafkaRanges.VALUE)
            && OrdinaryScanner.texts(record.getBinary(KafkaRanges.VALUE), names, row);
        row[0] = Boolean.valueOf(isKnown);
        return joined.withRight(record);
    }
}
