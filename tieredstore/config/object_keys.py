"""The keys of a tier in an object store; `keys.py` lists all.

`objectStoreEndpoint`, `objectStoreBucket`, `objectStoreAccessKey` and `objectStoreSecretKey` are
RocketMQ's (TieredMessageStoreConfig); the others are named like them.
"""

from tieredstore.config.key import Key, Kind

SCHEME = "s3"
"""Of the URL that `objectStoreBucket` stands for."""

OBJECT_STORE = (
    Key(
        "objectStoreEndpoint",
        Kind.TEXT,
        "",
        "URL of an object store that speaks S3, such as https://s3.example.com; it may have a "
        "path. Empty: AWS.",
    ),
    Key(
        "objectStoreBucket",
        Kind.TEXT,
        "",
        "Bucket of the tier where tieredStoreFilePath is empty; the same as "
        "tieredStoreFilePath=s3://BUCKET.",
    ),
    Key(
        "objectStoreRegion",
        Kind.TEXT,
        "",
        "Region of the bucket. Empty: AWS_REGION, the region of the profile, or us-east-1.",
    ),
    Key(
        "objectStoreAccessKey",
        Kind.SECRET,
        "",
        "Access key, from the environment only. Empty: the AWS credential chain, such as "
        "AWS_ACCESS_KEY_ID.",
        is_machines=True,
    ),
    Key(
        "objectStoreSecretKey",
        Kind.SECRET,
        "",
        "Secret key, from the environment only. Empty: the AWS credential chain, such as "
        "AWS_SECRET_ACCESS_KEY.",
        is_machines=True,
    ),
    Key(
        "objectStoreAllowHttp",
        Kind.SWITCH,
        default=False,
        meaning=(
            "True: an http:// endpoint may be on another host, where credentials and messages can "
            "be read on their way."
        ),
    ),
    Key(
        "objectStoreAddressing",
        Kind.CHOICE,
        "PATH",
        "Place of the bucket in a URL: PATH for https://host/bucket, VIRTUAL for "
        "https://bucket.host.",
        choices=("PATH", "VIRTUAL"),
    ),
    Key(
        "objectStoreRequesterPays",
        Kind.SWITCH,
        default=False,
        meaning="True: requests accept that their caller pays, as some buckets want it.",
    ),
    Key(
        "objectStoreUploadChecksum",
        Kind.CHOICE,
        "CRC64NVME",
        "Checksum that goes with each upload, for the service to verify; NONE: no such header.",
        choices=("CRC64NVME", "SHA256", "NONE"),
    ),
    Key(
        "objectStoreCaBundle",
        Kind.PATH,
        "",
        "File of certificates (PEM) that are trusted beside the system's. Empty: AWS_CA_BUNDLE.",
    ),
    Key(
        "objectStoreProxy",
        Kind.TEXT,
        "",
        "URL of an HTTP proxy. Empty: HTTPS_PROXY or HTTP_PROXY. NO_PROXY and this host's own "
        "addresses are excepted.",
    ),
    Key(
        "objectStoreServerSideEncryption",
        Kind.CHOICE,
        "BUCKET",
        "Encryption at rest that is asked for with each object; BUCKET: what the bucket is set to.",
        choices=("BUCKET", "AES256", "aws:kms"),
    ),
    Key(
        "objectStoreKmsKeyId",
        Kind.TEXT,
        "",
        "Key of aws:kms encryption (see objectStoreServerSideEncryption). Empty: the account's.",
    ),
    Key(
        "objectStoreEncryptionKeys",
        Kind.SECRET,
        "",
        "Master keys of encryption before upload, from the environment only: NAME:BASE64, ... "
        "The first one encrypts.",
        is_machines=True,
    ),
    Key(
        "objectStoreRequestsMax",
        Kind.COUNT,
        32,
        "Maximum number of requests under way at once, uploads apart, of which there are 8.",
        "ObjectOptions.requests_max",
        "requests",
        most=1024,
    ),
    Key(
        "objectStoreRequestTimeout",
        Kind.MILLISECONDS,
        60_000,
        "Maximum time of a request that moves no bytes; each 512 KiB give it a second more.",
        "ObjectOptions.request_s_max",
    ),
    Key(
        "objectStoreUploadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are sent to an object store in a second; 0: any number.",
        "ObjectOptions.upload_bytes_per_s_max",
        "bytes a second",
        least=0,
    ),
    Key(
        "objectStoreDownloadRateMax",
        Kind.BYTES,
        0,
        "Maximum number of bytes that are read from an object store in a second; 0: any number.",
        "ObjectOptions.download_bytes_per_s_max",
        "bytes a second",
        least=0,
    ),
    Key(
        "objectStorePriceTable",
        Kind.PATH,
        "",
        "File with the prices of the object store. Empty: the shipped one, of Amazon S3.",
    ),
)
