package eo.pipeline;

import java.util.HashMap;

/** Sums of the hashes of rows, as eo_pipeline/batch/checksum.py has them, and how many rows. */
final class Hashes {
    private static final long HALF = 0xffffffffL;

    private long rows;
    private long low;
    private long high;
    private long xor;

    void add(long hash) {
        rows++;
        low += hash & HALF;
        high += hash >>> 32;
        xor ^= hash;
    }

    long rows() {
        return rows;
    }

    void tell(HashMap counted) {
        counted.put("rows", new Long(rows));
        counted.put("checksum_low", new Long(low));
        counted.put("checksum_high", new Long(high));
        counted.put("checksum_xor", new Long(xor));
    }
}
