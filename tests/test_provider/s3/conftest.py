"""A file system on the real server, with a directory of its own."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from provider.s3.file_system import S3FileSystem
from tests.support.seaweedfs import SeaweedFs

BUCKET = "files"


@pytest.fixture
async def fs(seaweed: SeaweedFs) -> AsyncIterator[S3FileSystem]:
    """For calls on the test's own loop."""
    file_system = S3FileSystem(asynchronous=True, **seaweed.storage)
    yield file_system
    await file_system.close()


@pytest.fixture
def place(seaweed: SeaweedFs) -> str:
    """`bucket/directory`, empty."""
    return f"{seaweed.make_bucket(BUCKET)}/{uuid4().hex}"
