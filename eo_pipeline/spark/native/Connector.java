package eo.pipeline;

import java.lang.invoke.LambdaMetafactory;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.ToIntFunction;
import java.util.function.ToLongFunction;

/**
 * The functions of Spark's Kafka connector, and of Kafka's client, that read the records of a range;
 * found by their names, since this is compiled without either.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
final class Connector {
    /** A record of a consumer of Spark's, or null: no more are left before "until". */
    interface Take {
        Object take(Object consumer, long offset, long until, long timeoutMs, boolean failsOnLoss);
    }

    private static final String SPARKS = "org.apache.spark.sql.kafka010.";
    private static final String KAFKAS = "org.apache.kafka.";
    private static boolean isKnown;
    private static Connector known;

    // of a range
    final Function offsets;
    final Function settings;
    final ToLongFunction timeoutMs;
    final Predicate failsOnLoss;
    final Function topicPartition;
    final ToLongFunction from;
    final ToLongFunction until;
    final Function topic;
    final ToIntFunction partition;

    // of a consumer
    final BiFunction acquire;
    final Take take;
    final Consumer release;

    // of a record
    final Function key;
    final Function value;
    final ToLongFunction offset;
    final ToLongFunction timestamp;
    final Function timestampType;
    final Function headers;
    final Function headerKey;
    final Function headerValue;

    private Connector(Class range) throws Throwable {
        // the functions are defined here: what they call must be known here, and be that of the range
        ClassLoader loader = Connector.class.getClassLoader();
        if (loader.loadClass(SPARKS + "KafkaBatchInputPartition") != range) {
            throw new ClassNotFoundException(range.getName());
        }
        offsets = (Function) function(Function.class, range, "offsetRange");
        settings = (Function) function(Function.class, range, "executorKafkaParams");
        timeoutMs = (ToLongFunction) function(ToLongFunction.class, range, "pollTimeoutMs");
        failsOnLoss = (Predicate) function(Predicate.class, range, "failOnDataLoss");
        Class span = loader.loadClass(SPARKS + "KafkaOffsetRange");
        topicPartition = (Function) function(Function.class, span, "topicPartition");
        from = (ToLongFunction) function(ToLongFunction.class, span, "fromOffset");
        until = (ToLongFunction) function(ToLongFunction.class, span, "untilOffset");
        topic = (Function) function(Function.class, span, "topic");
        partition = (ToIntFunction) function(ToIntFunction.class, span, "partition");
        Class consumer = loader.loadClass(SPARKS + "consumer.KafkaDataConsumer");
        acquire = (BiFunction) function(BiFunction.class, consumer, "acquire");
        take = (Take) function(Take.class, consumer, "get");
        release = (Consumer) function(Consumer.class, consumer, "release");
        Class record = loader.loadClass(KAFKAS + "clients.consumer.ConsumerRecord");
        key = (Function) function(Function.class, record, "key");
        value = (Function) function(Function.class, record, "value");
        offset = (ToLongFunction) function(ToLongFunction.class, record, "offset");
        timestamp = (ToLongFunction) function(ToLongFunction.class, record, "timestamp");
        timestampType = (Function) function(Function.class, record, "timestampType");
        headers = (Function) function(Function.class, record, "headers");
        Class header = loader.loadClass(KAFKAS + "common.header.Header");
        headerKey = (Function) function(Function.class, header, "key");
        headerValue = (Function) function(Function.class, header, "value");
    }

    /** That of a range's class; null: this Spark has another one, or has it elsewhere. */
    static synchronized Connector of(Class range) {
        if (!isKnown) {
            isKnown = true;
            try {
                known = new Connector(range);
            } catch (Throwable other) {
                return null; // as from now on
            }
        }
        return known;
    }

    /** The only public method "name" of a class as what a functional interface has. */
    private static Object function(Class functional, Class of, String name) throws Throwable {
        Method sole = only(functional, null);
        MethodHandles.Lookup lookup = MethodHandles.lookup();
        MethodHandle method = lookup.unreflect(only(of, name));
        MethodType any = MethodType.methodType(sole.getReturnType(), sole.getParameterTypes());
        return LambdaMetafactory.metafactory(
            lookup, sole.getName(), MethodType.methodType(functional), any, method, method.type())
            .getTarget().invokeWithArguments(new Object[0]);
    }

    /** The method of a name, or the abstract one of an interface. */
    private static Method only(Class of, String name) throws NoSuchMethodException {
        Method found = null;
        Method[] all = of.getMethods();
        for (int i = 0; i < all.length; i++) {
            boolean isIt = name == null
                ? Modifier.isAbstract(all[i].getModifiers()) : all[i].getName().equals(name);
            if (isIt && found != null) {
                throw new NoSuchMethodException(of + " has more than one " + name);
            }
            found = isIt ? all[i] : found;
        }
        if (found == null) {
            throw new NoSuchMethodException(of + " has no " + name);
        }
        return found;
    }
}
