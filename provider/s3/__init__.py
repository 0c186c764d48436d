"""fsspec file system for S3 that keeps the promises of a store; needs `tieredstore[s3]`."""

from provider.s3.file_system import S3FileSystem
from provider.s3.options import S3Options

__all__ = ["S3FileSystem", "S3Options"]
