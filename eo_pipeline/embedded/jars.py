"""Jars of the embedded servers, and of Spark for stores and logins, downloaded once."""

from __future__ import annotations

from pathlib import Path

from eo_pipeline.spark.maven import Artefact, artefact_of, beside_pyspark, pyspark_jars, resolved

KAFKA_VERSION = "4.1.0"

#: Hadoop's file system for S3, of Spark 4.0's Hadoop release, and the modules of the AWS SDK that
#: it uses: its declared dependency, the whole SDK, has half a gigabyte.
_S3 = (
    Artefact("org.apache.hadoop", "hadoop-aws", "3.4.1", alone=True),
    Artefact("software.amazon.awssdk", "s3-transfer-manager", "2.25.53"),
    Artefact("software.amazon.awssdk", "sts", "2.25.53"),
)

#: Hadoop's file system for Azure: the first release with support for the Blob endpoint.
_AZURE = Artefact("org.apache.hadoop", "hadoop-azure", "3.4.2", alone=True)
#: Google's file system for Hadoop 3, with its dependencies shaded.
_GCS = Artefact("com.google.cloud.bigdataoss", "gcs-connector", "hadoop3-2.2.26", "shaded")

#: Amazon's login to MSK.
MSK_LOGIN = "software.amazon.msk:aws-msk-iam-auth:2.3.6"

_REGISTRY = Artefact("io.apicurio", "apicurio-registry-app", "2.6.13.Final", "all", kind="tar.gz")


def kafka_broker_jars(state: Path) -> tuple[Path, ...]:
    """Return the class path of a Kafka broker; downloaded (43 MB, some 30 s) the first time.

    Spark's logging jars come first: Kafka depends on a logging API without an implementation.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    broker = resolved(Artefact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), state)
    logging = [
        jar
        for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
        for jar in sorted(pyspark_jars().glob(f"{name}-*.jar"))
    ]
    return (*logging, *broker)


def spark_s3_jars(state: Path) -> tuple[Path, ...]:
    """Return Spark's jars for S3, without those of pyspark; downloaded (15 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return beside_pyspark(_S3, state)


def spark_azure_jars(state: Path) -> tuple[Path, ...]:
    """Return Spark's jars for Azure Storage, without those of pyspark; downloaded (0.8 MB) the
    first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return resolved(_AZURE, state)


def spark_gcs_jars(state: Path) -> tuple[Path, ...]:
    """Return Spark's jar for Google Cloud Storage; downloaded (38 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return resolved(_GCS, state)


def spark_msk_jars(state: Path) -> tuple[Path, ...]:
    """Return Spark's jars for logins to Amazon MSK, without those of pyspark; downloaded (6 MB) the
    first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return beside_pyspark([artefact_of(MSK_LOGIN)], state)


def registry_jar(state: Path) -> Path:
    """Return the jar of a schema registry; downloaded (142 MB) the first time.

    Raises:
        SetupError: Java is missing, the download failed, or the disk is full.
    """
    return next(jar for jar in resolved(_REGISTRY, state) if jar.stem.endswith("-runner"))
