"""Certificates for servers on this machine, made by openssl."""

import shutil
import subprocess
from pathlib import Path

from tests.support.lacking import lacks


def made_certificates(directory: Path) -> tuple[Path, Path]:
    """The file of an authority, and one of a certificate that it signed with its key."""
    if shutil.which("openssl") is None:
        lacks("Certificates are made by the command openssl.")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    key = ["-newkey", "rsa:2048", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Our CA")
    openssl("req", *key, "-keyout", "s.key", "-out", "s.csr", "-subj", "/CN=127.0.0.1")
    (directory / "x").write_text(
        "subjectAltName=IP:127.0.0.1,DNS:s3.example.test\nbasicConstraints=CA:FALSE\n"
    )
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "x"]
    openssl("x509", "-req", "-in", "s.csr", *signing, "-days", "30", "-out", "s.pem")
    both = directory / "both.pem"
    both.write_text((directory / "s.pem").read_text() + (directory / "s.key").read_text())
    return directory / "ca.pem", both
