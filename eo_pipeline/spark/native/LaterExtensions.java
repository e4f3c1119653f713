package eo.pipeline;

import java.io.IOException;
import java.net.URL;
import java.util.Enumeration;
import java.util.Vector;
import org.apache.spark.sql.SparkSessionExtensions;

/**
 * A class loader by which the extension of Spark's machine learning is not found, and every other
 * one is. A session finds its extensions by the class loader of the thread that makes it.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
public class LaterExtensions extends ClassLoader {
    private static final String PROVIDERS =
        "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider";
    private static final String JAR = "/spark-mllib_";
    private static final String PROVIDER = "org.apache.spark.sql.ml.InternalFunctionRegistration";

    private LaterExtensions(ClassLoader parent) {
        super(parent);
    }

    /** From now on, in this thread. Gives the class loader that it had. */
    public static ClassLoader hide() {
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        thread.setContextClassLoader(
            new LaterExtensions(before == null ? LaterExtensions.class.getClassLoader() : before));
        return before;
    }

    /** No longer: the thread has its class loader of {@code before} again. */
    public static void show(ClassLoader before) {
        Thread.currentThread().setContextClassLoader(before);
    }

    /** What the extension does, which is for all sessions. */
    public static void register() throws Exception {
        Class found = Class.forName(PROVIDER, true, LaterExtensions.class.getClassLoader());
        Object made = found.getDeclaredConstructor(new Class[0]).newInstance(new Object[0]);
        ((scala.Function1) made).apply(new SparkSessionExtensions());
    }

    public Enumeration getResources(String name) throws IOException {
        Enumeration all = super.getResources(name);
        if (!name.equals(PROVIDERS)) {
            return all;
        }
        Vector kept = new Vector();
        while (all.hasMoreElements()) {
            URL url = (URL) all.nextElement();
            if (url.toString().indexOf(JAR) < 0) {
                kept.add(url);
            }
        }
        return kept.elements();
    }
}
