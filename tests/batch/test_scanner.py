"""Of a record the scanner makes what the parser makes of it, to the bit, or gives up; and it does
not give up where it should not. ``test_ordinary`` compares both with Spark's reader.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.decode_json import native_parameters, read_as
from eo_pipeline.batch.spark_schema import parsed_schema
from eo_pipeline.embedded.spark import EmbeddedSpark
from eo_pipeline.spark import SparkSettings
from eo_pipeline.spark.java import find_java
from eo_pipeline.spark.jvm import spark_home
from eo_pipeline.spark.native_jar import compiled_jar
from tests.batch.frames import kafka_frame
from tests.batch.test_fast_json import LEFT, LEFT_WHOLE, READ, WIDE, a_source, judged, records

#: As most records are; what it costs to read one is measured with these, too.
USUAL = (
    "id BIGINT NOT NULL, customer STRING, country STRING, amount DOUBLE, at_ms BIGINT, note STRING"
)
A_USUAL_ONE = (
    b'{"id":123,"customer":"c-7919","country":"AT","amount":12.25,"at_ms":1700000000123,"note":"'
    + b"0123456789abcdef" * 7
    + b'"}'
)

#: With something of everything that has parts.
NESTED = (
    "a STRUCT<b: STRING NOT NULL, c: DOUBLE>, d ARRAY<INT>, e MAP<STRING, BIGINT>, "
    "f DECIMAL(8,2), g DATE, h TIMESTAMP, i BOOLEAN"
)
A_NESTED_ONE = (
    '{"a":{"b":"é","c":-1.5e2},"d":[1,null, 2],"e":{"x":1,"":null},"f":1.25,'
    '"g":"2024-02-29","h":"2026-01-31T08:30:00.5Z","i":true,"new":-0.5}'
).encode()

SHORT = "id BIGINT NOT NULL, x STRING"
A_SHORT_ONE = b'{"id":10,"x":"\xc3\xa9\\n\\ud83d\\ude00"}'

#: What takes the place of each byte of a record, or goes before it.
SPOILING = [
    *(b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\t", b"\n", b"\r", b"\x0b"),
    *(b"\x00", b"\x1f", b"\x7f", b"\x80", b"\xff", "é".encode(), b"0", b"9", b"-", b"+", b"."),
    *(b"e", b"E", b"n", b"null", b"true", b'"a":1,', b'"w":1,', b"\xef\xbb\xbf", b"\xc0\x80"),
]

#: By themselves, and as what a number could be mistaken for.
NUMBERS = [
    *("0", "-0", "00", "-00", "01", "-01", "+1", "-", "--1", "1", "-1", "1.", "-1.", ".1", "-.1"),
    *("0.", "0.0", "-0.0", "-0.00", "0e0", "-0e5", "0e-5", "1e5", "1E+5", "1E-5", "1e", "1e+"),
    *("1e-", "1e5.", "1e1e1", "1.e5", "1.5.5", "1_0", "1d", "1f", "0x1", "1 2", "1,2", "1-", "1/"),
    *("1:", "127", "128", "-128", "-129", "32767", "32768", "-32768", "-32769", "2147483647"),
    *("2147483648", "-2147483648", "-2147483649", "999999999999999999", "1000000000000000000"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775807", "9" * 19, "9" * 20),
    *("-9223372036854775808", "-9223372036854775809", "18446744073709551615", "9" * 38, "9" * 39),
    *("18446744073709551616", "9007199254740991", "9007199254740992", "9007199254740993"),
    *("9007199254740993.0", "900719925474099.3", "0.1", "0.30000000000000004", "1e22", "1e23"),
    *("9007199254740992e22", "9007199254740992e-22", "1e-22", "1e-23", "123456789012345.6789"),
    *("1.7976931348623157e308", "1.7976931348623159e308", "1e308", "1e309", "-1e309", "1e400"),
    *("4.9e-324", "2.4e-324", "1e-320", "2.2250738585072012e-308", "2.2250738585072014e-308"),
    *("1e9999", "1e-9999", "1e10000", "1e00000000005", "1e2147483648", "0e99999", "0.1e1", "16e-1"),
    *("16777217", "16777217.0", "33554435.0", "3.4028236e38", "1e39", "1e-46", "1.17549435E-38"),
    *("1.005", "12345678.25", "99999999.99", "99999999.999", "100000000", "1.50", "0.10", "1.500"),
    *("0." + "0" * 30 + "1", "0" * 50, "1" + "0" * 50, "1." + "0" * 98, "1." + "0" * 99),
    *("1" * 100, "1" * 101, "1" * 1000, "1" * 1001, "NaN", "Infinity", "-Infinity", "١", "1\x00"),
]
OF_NUMBERS = ["BIGINT", "INT", "SMALLINT", "TINYINT", "DOUBLE", "FLOAT", "DECIMAL(10,2)"]
OF_NUMBERS += ["DECIMAL(38,0)", "DECIMAL(3,3)", "STRING"]

#: In quotes; the last ones are no UTF-8.
TEXTS = [
    *(b"", b"a", b" ", b"\x7f", b"'", b"/", b"1234567", b"12345678", b"123456789", b"}", b"{,:[]"),
    *("é".encode(), "€".encode(), "\U0001f600".encode(), "\uffff\ufffe\ufeff".encode()),
    *("\U0010ffff".encode(), b"\xc2\x80", "1234567é".encode(), "é1234567".encode()),
    *(b"\\", b"\\\\", b'\\"', b"\\u0041", b"\\n", b"\\ud83d", b"1234567\\", b"1234567\\n"),
    *(b"\\/\\b\\f\\n\\r\\t", b"\\'", b"\\x41", b"\\U0041", b"\\a", b"\\0", b"\\u", b"\\u004"),
    *(b"\\u0000", b"\\u007f\\u0080", b"\\u07FF\\u0800", b"\\uD7ff\\uE000\\uFFFF", b"\\u00g1"),
    *(
        b"\\ud83d\\ude00",
        b"\\uD800\\uDC00\\udbff\\udfff",
        b"\\ude00",
        b"\\ude00\\ud83d",
        b"\\ude00\\ude00",
        b"\\udbff\\udbff",
        b"\\u+041",
    ),
    *(b"\\ud83d\\ud83d\\ude00", b"\\ud83dx", b"\\ud83d\\n", b"\\ud83d\\", b"\\ud83d\\u0041"),
    *(
        "é\\n\U0001f600".encode(),
        "\\né".encode(),
        "\\é".encode(),
        "\\u00é".encode(),
        b"\\\n",
        b"\\\x00",
    ),
    *(
        b"\xc3\\n\xa9",
        b"\\n\xff",
        b"\xff\\n",
        b"\\n\xc3",
        b"\xc3\\u00a9",
        b"\\n\x1f",
        b"\\u\xb2000",
    ),
    *(
        b"12345678" * 3 + b"\\n" + b"12345678" * 3,
        b"\\\\" * 20,
        b"\\u20ac" * 20,
        b"\\ud83d\\ude00" * 9,
    ),
    *(bytes([control]) for control in range(0x20)),
    *(b"1234567" + bytes([control]) + b"12345678" for control in range(0x20)),
    *(b"\x80", b"\xbf", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80", b"\xc1\xbf", b"\xff"),
    *(b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80"),
    *(b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"1234567\xc3", b"\xc3(\xa9"),
]

#: Whole records of the schema ``v BIGINT, w STRING``.
WHOLE = [
    *(b"{}", b"{ }", b"{\t\r\n }", b"{\x0b}", b"{\x00}", b"{,}", b'{"v"}', b'{"v":}', b'{"v" 1}'),
    *(b'{"v":1,}', b'{,"v":1}', b'{"v":1,,"w":"x"}', b'{"v":1 "w":"x"}', b'{"v":1;"w":"x"}'),
    *(b'{"v":1}}', b'{"v":1}x}', b'{"v":1}\x00}', b'{"v":1},{}', b'{{"v":1}}', b'[{"v":1}]'),
    *(b'{"v":null}', b'{"v":nul}', b'{"v":nulll}', b'{"v":null1}', b'{"v":Null}', b'{"v":n}'),
    *(b'{"v":1,"v":1}', b'{"v":null,"v":1}', b'{"w":"x","v":1}', b'{"w":null,"w":null}'),
    *(b'{"":1}', b'{"":1,"":2}', b'{"v ":1}', b'{" v":1}', b'{"V":1}', b'{"\\u0076":1}'),
    *(
        b'{"\xc3\xa9":1}',
        b'{"\xc3":1}',
        b'{"v\x00":1}',
        b'{"v\n":1}',
        b'{"' + b"n" * 9999 + b'":1}',
    ),
    *(b'{"' + b"n" * 10001 + b'":1}', b'{"' + b"n" * 60000 + b'":1}'),
    *(
        b'{"new":%b,"v":1}' % token
        for token in (b"1", b"-", b'-"x"', b"1e5", b"01", b"true", b"tru")
    ),
    *(
        b'{"new":%b,"v":1}' % token
        for token in (b"null", b"nul", b'"\\n"', b'"\n"', b'"\xff"', b"x")
    ),
    *(b'{"new":%b,"v":1}' % token for token in (b"[]", b"{}", b'{"v":2}', b"", b'"x"', b'"x"y')),
    *(
        b'{"new":%b,"v":1}' % token
        for token in (b"falsetrue", b"1true", b"nullnull", b'""', b'1""')
    ),
    *(b'{"v":1,"new":2,"new":3}', b'{"new":1,"newer":"x"}', b'{"w":"{\\"v\\":1}"}'),
]

#: Of one type each, what the parser is needed for though there is nothing to judge.
PARSED = [
    ("BIGINT", "-9223372036854775808"),
    ("DOUBLE", "1e00005"),
    ("DOUBLE", "1" * 101),
    ("DECIMAL(10,2)", "1e3"),
    ("DECIMAL(38,0)", "9" * 38),
    ("MAP<STRING, INT>", json.dumps({"k" * 10_001: 1})),
    ("STRING", 'null, "new": {}'),
]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGateway]:
    """A Java with Spark's classes and ours, and no Spark."""
    jars = spark_home() / "jars"
    [gateway_jar] = jars.glob("py4j-*.jar")
    port, token = launch_gateway(
        jarpath=str(gateway_jar),
        classpath=f"{compiled_jar()}:{jars}/*",
        javaopts=["--add-opens=java.base/java.nio=ALL-UNNAMED", "-XX:+UseSerialGC"],
        java_path=str(find_java().command),
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    # py4j knows a class by its name, and of those that Spark generates many have the same
    settings = gateway.jvm.org.apache.spark.sql.internal.SQLConf.get()
    settings.setConfString("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield gateway
    gateway.shutdown()


class Function:
    """Ours for one schema; what each of its ways gives of a value, in the form of Spark's rows."""

    def __init__(self, java: JavaGateway, schema: str) -> None:
        wanted = parsed_schema(schema)
        namespace = java.new_array(java.jvm.java.lang.String, 1)
        namespace[0] = "json"
        name = native_parameters(wanted, read_as(wanted))
        spark = java.jvm.org.apache.spark.sql
        identifier = spark.connector.catalog.Identifier.of(namespace, name)
        functions = java.jvm.eo.pipeline.OrdinaryFunctions()
        self.function = functions.loadFunction(identifier).bind(None)
        unknown = StructField("unknown", ArrayType(StringType()))
        row = spark.types.DataType.fromJson(StructType([*wanted, unknown]).json())
        self._rows = spark.catalyst.expressions.UnsafeProjection.create(row.asNullable())

    def scanned(self, value: bytes) -> bytes | None:
        return self._as_bytes(self.function.scanned(value))

    def parsed(self, value: bytes) -> bytes | None:
        return self._as_bytes(self.function.parsed(value))

    def is_scanned(self, value: bytes) -> bool:
        return self.function.scanned(value) is not None

    def _as_bytes(self, row: Any) -> bytes | None:
        return None if row is None else bytes(self._rows.apply(row).getBytes())

    def scans(self, values: Iterator[bytes]) -> int:
        """Count the ``values`` that the scanner reads, each with the parser's result."""
        many = 0
        for value in values:
            result = self.scanned(value)
            assert result is None or result == self.parsed(value), value
            many += result is not None
        return many


@pytest.fixture
def spark(spark_server: EmbeddedSpark) -> SparkSession:
    return SparkSettings(config={"spark.sql.session.timeZone": "UTC"}).session()


Of = Callable[[str], Function]


@pytest.fixture(scope="module")
def of(java: JavaGateway, spark_server: EmbeddedSpark) -> Of:
    SparkSettings().session()  # which is what parses a schema
    return lambda schema: Function(java, schema)


def test_the_usual_record_is_scanned_and_its_texts_are_not_copied(of: Of) -> None:
    """So the function that Spark calls tries the scanner first."""
    row = of(USUAL).function.invoke(A_USUAL_ONE).getStruct(0, 6)
    assert row.getLong(4) == 1700000000123
    places = [row.getUTF8String(n).getBaseOffset() for n in (1, 2, 5)]
    wanted = [A_USUAL_ONE.index(text) for text in (b"c-7919", b"AT", b"01234")]
    assert [place - places[0] for place in places] == [place - wanted[0] for place in wanted]


def test_values_of_each_type_are_scanned_but_those_that_need_the_parser(of: Of) -> None:
    wrong = [
        (kind, value)
        for kind, value in [*READ, *PARSED]
        for function in [of(f"v {kind}")]
        for text in [f'{{"v": {value}}}'.encode()]
        if function.parsed(text) is None or function.is_scanned(text) == ((kind, value) in PARSED)
    ]
    assert wrong == []


def test_what_is_left_to_sparks_reader_is_not_scanned(of: Of) -> None:
    scanned = [
        (kind, value)
        for kind, value in LEFT
        if of(f"v {kind}").is_scanned(f'{{"v": {value}}}'.encode())
    ]
    assert scanned == []
    assert [value for value in LEFT_WHOLE if of("v BIGINT").is_scanned(value)] == []


@pytest.mark.parametrize("kind", OF_NUMBERS)
def test_numbers_are_scanned_as_they_are_parsed(of: Of, kind: str) -> None:
    forms = (f'{{"v":{number}{behind}}}' for number in NUMBERS for behind in ("", " ", "\n"))
    many = of(f"v {kind}").scans(form.encode() for form in forms)
    assert (many > 0) == (kind != "STRING")


@pytest.mark.parametrize("seed", range(3))
def test_numbers_by_chance_are_scanned_as_they_are_parsed(of: Of, seed: int) -> None:
    chance = random.Random(seed)
    numbers = [a_number(chance) for _ in range(20_000)]
    for kind, greatest in (("DOUBLE", 1e308), ("FLOAT", 3e38)):
        fit = ",".join(number for number in numbers if abs(float(number)) < greatest)
        assert of(f"v ARRAY<{kind}>").scans(iter([f'{{"v":[{fit}]}}'.encode()])) == 1
    short = (number for number in numbers[:500] if "e" not in number)
    assert of("v DECIMAL(38,18)").scans(f'{{"v":{number}}}'.encode() for number in short) > 10


def a_number(chance: random.Random) -> str:
    """With few digits, as most have, or with so many that they are just enough or too many."""
    kind = chance.randrange(4)
    if kind == 0:
        return repr(chance.uniform(-1, 1) * 10.0 ** chance.randrange(-30, 30))
    digits = str(chance.randrange(10 ** chance.randrange(1, 22)))
    sign = chance.choice(["", "-"])
    if kind == 1:
        return sign + digits
    point = f"{sign}{digits}.{chance.randrange(10 ** chance.randrange(1, 9)):04}"
    return point if kind == 2 else f"{point}e{chance.randrange(-40, 40)}"


def test_texts_are_scanned_as_they_are_parsed(of: Of) -> None:
    function, good = of("v STRING, w STRING"), [text for text in TEXTS if is_good(text)]
    for form in (b'{"v":"%b"}', b'{"v": "%b" }', b'{"v":"%b","w":"12345678"}'):
        assert function.scans(form % text for text in TEXTS) == len(good)
    # a name that nobody knows
    plain = [text for text in good if b"\\" not in text]
    assert function.scans(b'{"%b":1}' % text for text in TEXTS) == len(plain)
    maps = (b'{"v":{"%b":1}}' % text for text in TEXTS)
    assert of("v MAP<STRING, INT>").scans(maps) == len(good)


def is_good(text: bytes) -> bool:
    """As Python sees it."""
    try:
        str(json.loads(f'"{text.decode()}"')).encode()
    except ValueError:
        return False
    return True


def test_whole_records_are_scanned_as_they_are_parsed(of: Of) -> None:
    assert of("v BIGINT, w STRING").scans(iter(WHOLE)) > 10
    assert of("v BIGINT NOT NULL, w STRING").scans(iter(WHOLE)) > 5


@pytest.mark.parametrize(
    "blank", [b" ", b"\t", b"\n", b"\r", b" \r\n\t ", b"\x0b", b"\x00", b"\xa0"]
)
def test_blanks_between_all_that_can_be_apart(of: Of, blank: bytes) -> None:
    parts = [b"{", b'"v"', b":", b"[", b"1", b",", b"2", b"]", b",", b'"w"', b":", b"{", b'"x"']
    parts += [b":", b"null", b"}", b",", b'"new"', b":", b"true", b"}"]
    function = of("v ARRAY<INT>, w MAP<STRING, INT>")
    assert function.is_scanned(blank.join(parts)) == (blank.strip(b" \t\n\r") == b"")
    function.scans(
        b"".join(parts[:at]) + blank + b"".join(parts[at:]) for at in range(len(parts) + 1)
    )


def test_names_that_must_be_escaped_are_not_taken_as_they_are(of: Of) -> None:
    schema = '`a``b` BIGINT, `c"d` BIGINT, `e\\f` BIGINT, `é` BIGINT, `g}` BIGINT'
    function = of(schema)
    assert function.is_scanned('{"a`b": 1, "é": 2, "g}": 3}'.encode())
    values = [b'{"c"d": 1}', b'{"c\\"d": 1}', b'{"e\\f": 1}', b'{"e\\\\f": 1}', b'{"\\u00e9": 1}']
    assert function.scans(iter(values)) == 3


def test_fields_in_any_order_are_scanned_also_of_many(of: Of) -> None:
    for many in (3, 17, 40):
        names = [f"n{n}" for n in range(many)]
        function = of(", ".join(f"{name} INT" for name in names))
        for seed in range(5):
            random.Random(seed).shuffle(names)
            value = json.dumps({name: int(name[1:]) for name in names}).encode()
            assert function.scans(iter([value, value[:-1] + b', "n1": 1}'])) == 1


@pytest.mark.parametrize(
    ("schema", "value"), [(USUAL, A_USUAL_ONE), (NESTED, A_NESTED_ONE), (SHORT, A_SHORT_ONE)]
)
def test_a_record_spoiled_anywhere_is_scanned_as_it_is_parsed(
    of: Of, schema: str, value: bytes
) -> None:
    function = of(schema)
    assert function.is_scanned(value)
    assert function.scans(value[:end] for end in range(len(value))) == 0
    assert function.scans(value[:end] + b"}" for end in range(len(value))) > 1
    assert function.scans(spoiled(value)) > len(value)


def test_a_record_spoiled_anywhere_is_judged_as_by_sparks_reader(spark: SparkSession) -> None:
    for schema, value in ((NESTED, A_NESTED_ONE), (SHORT, A_SHORT_ONE)):
        some = [*spoiled(value)][:: 1 if schema == SHORT else 13]
        frame = kafka_frame(spark, some).persist()
        source = a_source(schema, unknown_fields="fail")
        with_it, without = (judged(decode(frame, source, native=has)) for has in (True, False))
        assert with_it == without


def spoiled(value: bytes) -> Iterator[bytes]:
    for at, by, cut in product(range(len(value)), SPOILING, (0, 1)):
        yield value[:at] + by + value[at + cut :]


@pytest.mark.parametrize("seed", [3, 4])
def test_records_by_chance_are_scanned_as_they_are_parsed(of: Of, seed: int) -> None:
    assert of(WIDE).scans(records(random.Random(seed), 3000)) > 300
