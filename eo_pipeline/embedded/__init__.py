"""Real servers on 127.0.0.1, for a laptop and for the tests. They die with their owner.

    with EmbeddedKafka(state / "kafka") as kafka, EmbeddedPostgres(state / "postgres") as postgres:
        print(kafka.bootstrap_servers, postgres.dsn)

``server.py`` has what they share, ``guard.py`` the process that ends a server when its owner is
gone, ``jars.py`` where Kafka (and Spark's connector) come from.
"""
