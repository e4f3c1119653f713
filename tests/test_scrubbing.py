"""Secrets in texts that other programs wrote, and what is left of the sentence around them."""

from __future__ import annotations

import pickle

import pytest

from eo_pipeline.errors import EoPipelineError, SinkUnavailableError, scrubbed


@pytest.mark.parametrize(
    "text",
    [
        "postgresql+psycopg2://iceberg:hunter2@db:5432/catalog is not known",
        "could not connect to redis://:hunter2@cache:6379/0",
        "redis://app:hunter2@and@more@cache/0",
        'sasl.jaas.config=org.apache.kafka.PlainLoginModule required username="u" '
        'password="hunter2";, auto.offset.reset=none',
        'sasl.jaas.config -> x, kafka.sasl.jaas.config=A required password="a;hunter2\\"b"; next',
        "host=db user=app password=hunter2 dbname=x",
        "host=db user=app password='hunter2 and more' dbname=x",
        "sc://spark:15002/;token=hunter2;user_id=me",
        '{"s3.secret-access-key": "hunter2", "uri": "x"}',
        "{'AWS_SECRET_ACCESS_KEY': 'hunter2'}",
        "Map(ssl.keystore.password -> x, ssl.key.password=hunter2)",
        "Authorization: Bearer hunter2hunter2",
        "invalid token eyJhbGciOiJSUzI1NiJ9.hunter2.hunter2",
        'OAuthBearerLoginModule required clientId="me" clientSecret="hunter2";',
        "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
    ],
)
def test_a_secret_is_not_in_an_errors_text(text: str) -> None:
    assert "hunter2" in text
    assert "hunter2" not in str(EoPipelineError(f"it failed: {text}"))


@pytest.mark.parametrize(
    "text",
    [
        "source.client: PLAIN also needs sasl.password, sasl.username",
        "  sink.storage_options.AWS_SECRET: Input should be a valid string",
        "Correct the address, or the token behind it: spark.remote or SPARK_REMOTE.",
        "topic[0] offset 17: not JSON; value starts with '{\"id\": 1}'",
        "something listens there. A token or use_ssl=true in the address asks for TLS",
        "redis://cache:6379/0 does not answer",
        "http://127.0.0.1:3000/a:b@c",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert scrubbed(text) == text


def test_what_surrounds_a_secret_stays() -> None:
    text = 'a=1, sasl.jaas.config=X required username="u" password="p";, group.id=eo'
    assert scrubbed(text) == "a=1, sasl.jaas.config=***, group.id=eo"
    assert scrubbed("x://u:p@h:1/d failed") == "x://u:***@h:1/d failed"


def test_terminal_codes_are_for_terminals() -> None:
    assert str(EoPipelineError("\x1b[31mit\x1b[0m failed")) == "it failed"


def test_a_drawn_table_becomes_a_sentence() -> None:
    drawn = "Mismatch:\n┏━━━┳━━━━┓\n┃ a ┃ id  ┃\n└───┴────┘"
    assert str(EoPipelineError(drawn)) == "Mismatch:\n \n a id \n "
    assert scrubbed("a   b") == "a   b"


def test_an_error_survives_being_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(SinkUnavailableError("password=x")))
    assert str(error) == "password=***"
