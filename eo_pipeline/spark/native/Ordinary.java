package eo.pipeline;

import java.io.IOException;
import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;

/** Reads values in which there is nothing to judge. For one task. */
interface Ordinary extends Serializable {
    /** The columns of a record's value, and behind them the names of unknown fields; null: judge it. */
    Object[] values(byte[] value, InternalRow record) throws IOException;
}
