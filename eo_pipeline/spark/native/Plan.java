package eo.pipeline;

/** How records of one writer's schema become columns. For one task. */
abstract class Plan {
    static final RuntimeException ODD = new Odd();

    /** Bytes of the longest number. */
    private static final int NUMBER = 10;

    byte[] in;
    int at;

    /** The columns of the record at "from", and behind them the names of unknown fields; null: it is odd. */
    final Object[] read(byte[] bytes, int from) {
        in = bytes;
        at = from;
        try {
            return values();
        } catch (Odd odd) {
            return null;
        }
    }

    /** The same of what begins at {@link #at}, and ends with the bytes; or throws {@link #ODD}. */
    abstract Object[] values();

    /** Where the next bytes begin, which are taken. */
    final int moved(int by, int end) {
        if (by > end - at) {
            throw ODD;
        }
        int from = at;
        at += by;
        return from;
    }

    final long little(int bytes, int end) {
        int from = moved(bytes, end);
        long value = 0;
        for (int i = bytes - 1; i >= 0; i--) {
            value = value << 8 | in[from + i] & 0xff;
        }
        return value;
    }

    /** A number of seven bits a byte, the lowest first, of 64 bits at most. */
    final long number(int end) {
        long value = 0;
        for (int i = 0; i < NUMBER; i++) {
            int each = in[moved(1, end)];
            if (i == NUMBER - 1 && each >> 1 != 0) {
                throw ODD;
            }
            value |= (long) (each & 0x7f) << 7 * i;
            if (each >= 0) {
                return value;
            }
        }
        throw ODD;
    }

    /** Of its own class, so that nothing else is taken for it. */
    static final class Odd extends RuntimeException {
        Odd() {
            super("odd", null, false, false);
        }
    }
}
