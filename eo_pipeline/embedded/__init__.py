"""Real servers on 127.0.0.1, for a laptop and for the tests. They end with their owner.

    with EmbeddedKafka(state / "kafka") as kafka, EmbeddedPostgres(state / "postgres") as postgres:
        print(kafka.bootstrap_servers, postgres.dsn)

``server.py``: the base class. ``guard.py``: the process that ends a server with its owner.
``jars.py``: downloads of Kafka and of Spark's connector.
"""
