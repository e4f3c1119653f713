package eo.pipeline;

/** How records of one writer's schema become columns. For one task. */
interface Plan {
    /** The columns of the record at "from", and behind them the names of unknown fields; null: it is odd. */
    Object[] read(byte[] bytes, int from);
}
