package eo.pipeline;

import java.math.BigDecimal;
import java.util.LinkedHashSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where in one record's bytes the reading is, and what is read there: only what needs no parser.
 *
 * It takes less than {@link OrdinaryJson} does by the parser, and of what it takes it gives the
 * same. It gives up at a value of a field that nobody knows unless that is a plain one, and at
 * whatever is too long for the parser's limits to be out of sight. Texts without escapes are not
 * copied: they are parts of the record.
 *
 * The last byte of a record is its closing brace, which is none of a number's and none of a word's,
 * so that only texts and what follows another brace can meet the end.
 */
final class OrdinaryScanner {
    // the parser refuses texts of 20,000,000, names of 50,000 and numbers of 1,000
    private static final int LONGEST = 1 << 24;
    private static final int LONGEST_NAME = 10000;
    private static final int LONGEST_NUMBER = 100;

    // as many digits as an unsigned number of 64 bits has room for, whichever they are
    private static final int DIGITS = 19;
    private static final int DIGITS_OF_EXPONENT = 4;
    private static final long EXACT = 1L << 53;
    private static final double[] TENS = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
        1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22
    };

    private static final long ONES = 0x0101010101010101L;
    private static final long HIGHS = ONES * 0x80;
    private static final long BLANKS = ONES * ' ';
    private static final long QUOTES = ONES * '"';
    private static final long BACKSLASHES = ONES * '\\';

    private static final byte[] NULL = {'n', 'u', 'l', 'l'};
    private static final byte[] TRUE = {'t', 'r', 'u', 'e'};
    private static final byte[] FALSE = {'f', 'a', 'l', 's', 'e'};
    private static final String ESCAPES = "\"\\/bfnrt";
    private static final String ESCAPED = "\"\\/\b\f\n\r\t";
    private static final int HALVES = 0xd800;
    private static final int LOW_HALVES = 0xdc00;
    private static final int NO_HALVES = 0xe000;
    private static final int FEW = 16;
    private static final int UNKNOWN = -1;
    private static final int GIVEN_UP = -2;

    private final byte[] bytes;
    private int at;
    private boolean givenUp;
    private boolean escapes;
    private UTF8String name;

    // of the number that was read last; its digits without the point, of which some were behind it
    private int begun;
    private boolean negative;
    private long digits;
    private int behind;
    private int exponent;
    private boolean isWhole;
    private boolean fits;

    private OrdinaryScanner(byte[] bytes) {
        this.bytes = bytes;
    }

    /** The record, null if the parser must read it. */
    static InternalRow record(byte[] value, OrdinaryJson.Shape shape) {
        int last = value.length - 1;
        if (last < 1 || last > LONGEST || value[0] != '{' || value[last] != '}') {
            return null;
        }
        OrdinaryScanner in = new OrdinaryScanner(value);
        InternalRow row = in.struct(shape);
        return in.at == value.length ? row : null;
    }

    /**
     * Writes the texts of the fields "names", which are in quotes, from the second place of "found";
     * null: the field is null or absent. False: some value is left to the parser.
     */
    static boolean texts(byte[] value, byte[][] names, Object[] found) {
        int last = value.length - 1;
        if (last < 1 || last > LONGEST || value[0] != '{' || value[last] != '}') {
            return false;
        }
        OrdinaryScanner in = new OrdinaryScanner(value);
        return in.texts(names, found) && in.at == value.length;
    }

    private boolean texts(byte[][] names, Object[] found) {
        boolean[] seen = new boolean[names.length];
        is('{');
        for (boolean more = !is('}'); more; more = isMore('}')) {
            blanks();
            int wanted = 0;
            while (wanted < names.length && !isWord(names[wanted])) {
                wanted++;
            }
            boolean isWanted = wanted < names.length;
            if (isWanted ? seen[wanted] : !isName()) {
                return false;
            }
            if (!is(':')) {
                return false;
            }
            if (!isWanted) {
                if (!isValue(0)) {
                    return false;
                }
                continue;
            }
            seen[wanted] = true;
            blanks();
            if (!isWord(NULL)) {
                found[wanted + 1] = text();
                if (found[wanted + 1] == null) {
                    return false;
                }
            }
        }
        return !givenUp;
    }

    /** Passes over a name without escapes, which might be of the same name as another one. */
    private boolean isName() {
        escapes = false;
        return name() != null && !escapes;
    }

    /** Passes over a value. */
    private boolean isValue(int depth) {
        blanks();
        byte one = bytes[at];
        if (one != '{' && one != '[') {
            return isPlain();
        }
        if (depth == FEW) {
            return false;
        }
        at++;
        char end = one == '{' ? '}' : ']';
        for (boolean more = !is(end); more; more = isMore(end)) {
            blanks();
            if (one == '{' && (name() == null || !is(':')) || !isValue(depth + 1)) {
                return false;
            }
        }
        return !givenUp;
    }

    /** A name's bytes in a record, with the quotes; null: it would not be read as they are. */
    static byte[] quoted(String name) {
        byte[] quoted = UTF8String.fromString('"' + name + '"').getBytes();
        OrdinaryScanner in = new OrdinaryScanner(quoted);
        UTF8String read = in.name();
        boolean isSame = read != null && in.at == quoted.length && read.toString().equals(name);
        return isSame ? quoted : null;
    }

    /** The object that is here; null: given up, as everywhere. */
    InternalRow struct(OrdinaryJson.Shape shape) {
        if (!is('{')) {
            return null;
        }
        Object[] row = new Object[shape.width];
        boolean[] seen = new boolean[shape.names.length];
        LinkedHashSet unknown = null;
        int next = 0;
        for (boolean more = !is('}'); more; more = isMore('}')) {
            int field = field(shape, next);
            if (field == UNKNOWN && shape.unknown >= 0) {
                unknown = unknown == null ? new LinkedHashSet() : unknown;
                givenUp = !unknown.add(name) || !isPlain();
                continue;
            }
            if (field < 0 || seen[field]) {
                return null;
            }
            seen[field] = true;
            next = field + 1;
            row[field] = value(shape.kinds[field], !shape.required[field]);
        }
        if (givenUp || !shape.hasAll(seen)) {
            return null;
        }
        if (unknown != null) {
            if (escapes) {
                return null; // as the parser's way, though here nothing has been passed over
            }
            row[shape.unknown] = new GenericArrayData(unknown.toArray());
        }
        return new GenericInternalRow(row);
    }

    /** The place of the field whose name and colon are here, most likely "next". */
    private int field(OrdinaryJson.Shape shape, int next) {
        blanks();
        int place = near(shape, next);
        if (place < 0) {
            name = name();
            if (name == null) {
                return GIVEN_UP;
            }
            place = shape.find(name.toString(), next);
        }
        return is(':') ? place : GIVEN_UP;
    }

    /** The same, without the colon, if it is one of the next few and written as it mostly is. */
    private int near(OrdinaryJson.Shape shape, int next) {
        int all = shape.names.length;
        for (int i = 0; i < all && i < FEW; i++) {
            int place = next + i < all ? next + i : next + i - all;
            if (isWord(shape.quoted[place])) {
                return place;
            }
        }
        return UNKNOWN;
    }

    /** The name that is here, and a colon. */
    UTF8String key() {
        blanks();
        UTF8String key = name();
        return key != null && is(':') ? key : null;
    }

    /** What "kind" makes of the value that is here, or the null that may be. */
    Object value(OrdinaryJson.Kind kind, boolean nullable) {
        blanks();
        if (nullable && isWord(NULL)) {
            return null;
        }
        Object found = kind.scan(this);
        givenUp = found == null;
        return found;
    }

    /** Whether another element follows of what ends with "end". */
    boolean isMore(char end) {
        if (givenUp || is(',')) {
            return !givenUp;
        }
        givenUp = !is(end);
        return false;
    }

    boolean isGivenUp() {
        return givenUp;
    }

    /** Whether "mark" is next, which then has been read. */
    boolean is(char mark) {
        blanks();
        if (at == bytes.length || bytes[at] != mark) {
            return false;
        }
        at++;
        return true;
    }

    private void blanks() {
        while (at < bytes.length && bytes[at] <= ' ' && isBlank(bytes[at])) {
            at++;
        }
    }

    private static boolean isBlank(byte one) {
        return one == ' ' || one == '\n' || one == '\r' || one == '\t';
    }

    private boolean isWord(byte[] word) {
        if (word == null || word.length > bytes.length - at) {
            return false;
        }
        for (int i = 0; i < word.length; i++) {
            if (bytes[at + i] != word[i]) {
                return false;
            }
        }
        at += word.length;
        return true;
    }

    /** Passes over what has no parts. */
    private boolean isPlain() {
        blanks();
        if (bytes[at] == '"') {
            return text() != null;
        }
        return isWord(NULL) || truth() != null || number();
    }

    Boolean truth() {
        if (isWord(TRUE)) {
            return Boolean.TRUE;
        }
        return isWord(FALSE) ? Boolean.FALSE : null;
    }

    private UTF8String name() {
        int begin = at;
        UTF8String text = text();
        return at - begin > LONGEST_NAME ? null : text;
    }

    /** The text that is here. */
    UTF8String text() {
        if (bytes[at] != '"') {
            return null;
        }
        int begin = at + 1;
        int end = begin;
        long all = 0;
        while (end <= bytes.length - 8) {
            long eight = Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + end);
            if (hasMark(eight)) {
                break;
            }
            all |= eight;
            end += 8;
        }
        boolean beyond = (all & HIGHS) != 0;
        while (end < bytes.length && bytes[end] != '"') {
            byte one = bytes[end];
            if (one == '\\') {
                return unescaped(begin, end, beyond);
            }
            if (one >= 0 && one < ' ') {
                return null;
            }
            beyond |= one < 0;
            end++;
        }
        if (end == bytes.length) {
            return null;
        }
        at = end + 1;
        UTF8String text = UTF8String.fromBytes(bytes, begin, end - begin);
        return beyond && !text.isValid() ? null : text;
    }

    /** The text that begins at "begin", of which the first escape is at "from". */
    private UTF8String unescaped(int begin, int from, boolean beyond) {
        escapes = true;
        int end = from;
        while (end < bytes.length && bytes[end] != '"') {
            end += bytes[end] == '\\' ? 2 : 1;
        }
        if (end >= bytes.length) {
            return null;
        }
        // no escape is shorter than what it stands for
        byte[] text = new byte[end - begin];
        int size = from - begin;
        System.arraycopy(bytes, begin, text, 0, size);
        at = from;
        while (at < end) {
            byte one = bytes[at++];
            if (one >= 0 && one < ' ') {
                return null;
            }
            if (one != '\\') {
                beyond |= one < 0;
                text[size++] = one;
                continue;
            }
            int code = escaped();
            if (code < 0) {
                return null;
            }
            size = put(code, text, size);
        }
        at = end + 1;
        UTF8String read = UTF8String.fromBytes(text, 0, size);
        return beyond && !read.isValid() ? null : read;
    }

    /** The character of which the escape is here, behind its backslash; -1: it is none. */
    private int escaped() {
        byte one = bytes[at++];
        if (one == 'u') {
            return unicode();
        }
        int place = ESCAPES.indexOf(one);
        return place < 0 ? -1 : (int) ESCAPED.charAt(place);
    }

    private int unicode() {
        int code = unit();
        if (code < HALVES || code >= NO_HALVES) {
            return code;
        }
        // half a character is ordinary only before the other half
        if (code >= LOW_HALVES || bytes[at] != '\\' || bytes[at + 1] != 'u') {
            return -1;
        }
        at += 2;
        int low = unit();
        boolean isLow = low >= LOW_HALVES && low < NO_HALVES;
        return isLow ? 0x10000 + (code - HALVES << 10 | low - LOW_HALVES) : -1;
    }

    /** What the four digits stand for that are here; -1: they are not digits. */
    private int unit() {
        int code = 0;
        for (int i = 0; i < 4; i++) {
            int digit = at < bytes.length ? Character.digit((char) (bytes[at] & 0xff), 16) : -1;
            if (digit < 0) {
                return -1;
            }
            code = code << 4 | digit;
            at++;
        }
        return code;
    }

    /** Puts a character's bytes where "size" says, and gives where they end. */
    private static int put(int code, byte[] text, int size) {
        if (code < 0x80) {
            text[size++] = (byte) code;
            return size;
        }
        if (code < 0x800) {
            text[size++] = (byte) (0xc0 | code >> 6);
        } else {
            if (code < 0x10000) {
                text[size++] = (byte) (0xe0 | code >> 12);
            } else {
                text[size++] = (byte) (0xf0 | code >> 18);
                text[size++] = (byte) (0x80 | code >> 12 & 0x3f);
            }
            text[size++] = (byte) (0x80 | code >> 6 & 0x3f);
        }
        text[size++] = (byte) (0x80 | code & 0x3f);
        return size;
    }

    /** Whether one of eight bytes is a quote, a backslash or below a blank; at times if none is. */
    private static boolean hasMark(long eight) {
        long quotes = eight ^ QUOTES;
        long backslashes = eight ^ BACKSLASHES;
        long found = eight - BLANKS & ~eight | quotes - ONES & ~quotes
            | backslashes - ONES & ~backslashes;
        return (found & HIGHS) != 0;
    }

    /** Whether a number is here, which then is the one that the methods below tell of. */
    boolean number() {
        begun = at;
        negative = bytes[at] == '-';
        if (negative) {
            at++;
        }
        digits = 0;
        behind = 0;
        exponent = 0;
        int first = at;
        int many = digits();
        if (many == 0 || many > 1 && bytes[first] == '0') {
            return false;
        }
        isWhole = true;
        if (bytes[at] == '.') {
            isWhole = false;
            at++;
            behind = digits();
            if (behind == 0) {
                return false;
            }
        }
        fits = many + behind <= DIGITS && digits >= 0;
        if (bytes[at] == 'e' || bytes[at] == 'E') {
            isWhole = false;
            at++;
            if (!exponent()) {
                return false;
            }
        }
        return at - begun <= LONGEST_NUMBER;
    }

    /** How many digits are here; they are put behind those that there are. */
    private int digits() {
        int first = at;
        long value = digits;
        int digit = bytes[at] - '0';
        while (digit >= 0 && digit <= 9) {
            value = value * 10 + digit;
            digit = bytes[++at] - '0';
        }
        digits = value;
        return at - first;
    }

    private boolean exponent() {
        boolean less = bytes[at] == '-';
        if (less || bytes[at] == '+') {
            at++;
        }
        long before = digits;
        digits = 0;
        int many = digits();
        exponent = (int) (less ? -digits : digits);
        digits = before;
        return many > 0 && many <= DIGITS_OF_EXPONENT;
    }

    /** Whether it is a whole one of 64 bits. */
    boolean isLong() {
        return isWhole && fits;
    }

    long asLong() {
        return negative ? -digits : digits;
    }

    double asDouble() {
        if (isExactlyLong()) {
            return asLong();
        }
        int tens = exponent - behind;
        if (!fits || digits > EXACT || tens < -22 || tens > 22) {
            return Double.parseDouble(asText());
        }
        // both are exact, and what is made of them is rounded once (Clinger 1990)
        double value = tens < 0 ? digits / TENS[-tens] : digits * TENS[tens];
        return negative ? -value : value;
    }

    float asFloat() {
        return isExactlyLong() ? asLong() : Float.parseFloat(asText());
    }

    /** As {@link #isLong}, but -0. */
    private boolean isExactlyLong() {
        return isLong() && (digits != 0 || !negative);
    }

    /** Null: it is written in a way that is left to the parser. */
    BigDecimal asDecimal() {
        return fits && exponent == 0 ? BigDecimal.valueOf(asLong(), behind) : null;
    }

    private String asText() {
        return UTF8String.fromBytes(bytes, begun, at - begun).toString();
    }
}
