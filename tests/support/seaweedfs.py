"""A real S3 server for tests: SeaweedFS in one process on loopback, ended by its id.

Everything lies below one directory. It calls nobody (telemetry is off), and nobody else can call
it. `SIGKILL` is safe for what it acknowledged, and it starts again on the same directory and ports.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import SystemRandom
from typing import Any, Self

from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.support.patience import Patience, wait_until

ACCESS_KEY = "testkey0000000000"
SECRET_KEY = "testsecret00000000000000000000"
PORTS = range(20_000, 30_000)
GRPC_PORTS_ABOVE = 10_000
PORTS_USED = 5
BUCKET_CHARACTERS_MIN = 3
READY_BUCKET = "ready"
REQUEST_S_MAX = 10.0


def credentials() -> dict[str, Any]:
    """What a client asks a credential provider for."""
    return {
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "expires_at": None,
    }


def free_ports(count: int) -> list[int]:
    """Ports that are free together with those that the server takes 10,000 above them."""
    found: list[int] = []
    random = SystemRandom()
    while len(found) < count:
        port = random.choice(PORTS)
        if port not in found and all(map(_is_free, (port, port + GRPC_PORTS_ABOVE))):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class SeaweedFs:
    """One server; leaving the context kills it and removes what it kept."""

    def __init__(self, directory: Path) -> None:
        """Keep everything below `directory`, which need not exist."""
        self._directory = directory
        self._ports = free_ports(PORTS_USED)
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://127.0.0.1:{self._ports[3]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
        }

    @property
    def storage(self) -> dict[str, Any]:
        """Options of an `S3FileSystem` on this server, at `endpoint` or that of a proxy."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "credentials": credentials}

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it has stored an object; also after `kill`, on what it kept."""
        assert self._process is None, "it runs"
        data = self._directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        config = self._directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        master, volume, filer, s3, admin = self._ports
        command = [
            str(Path(sys.executable).with_name("weed")), "-v=0", "mini",
            f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
            f"-s3.port={s3}", f"-admin.port={admin}", f"-s3.config={config}",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.preStopSeconds=0",
        ]  # fmt: skip
        with (self._directory / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._directory,  # it reads its settings from there
                stdout=log,
                stderr=log,
                # With half of that its collector never rests: each request takes six times the CPU.
                env={**os.environ, "GOMEMLIMIT": "400MiB"},
            )
        try:
            wait_until(self._is_ready, Patience("SeaweedFS is not ready", pids=[self._process.pid]))
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it at once, as a failing machine would; what it acknowledged stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def make_bucket(self, name: str) -> str:
        """Make a bucket; one that is there stays."""
        assert len(name) >= BUCKET_CHARACTERS_MIN
        # A bucket is a directory of its filer, which asks nobody's permission.
        filer = self._ports[2]
        connection = HTTPConnection("127.0.0.1", filer, timeout=REQUEST_S_MAX)
        with contextlib.closing(connection):
            connection.request("POST", f"/buckets/{name}/")
            status = connection.getresponse().status
        if status >= HTTPStatus.BAD_REQUEST and status != HTTPStatus.CONFLICT:
            raise OSError(f"no bucket {name!r}: {status}")
        return name

    def client(self, bucket: str) -> S3Store:
        """obstore's own client, for what a test does behind the back of the tested one."""
        return S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "weed.log").read_text()[-2000:]
        try:
            self.make_bucket(READY_BUCKET)
            self.client(READY_BUCKET).put("probe", b"x")
        except (OSError, HTTPException, BaseError):
            return False
        return True
