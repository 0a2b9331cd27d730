"""How does s3fs keep the port's promises on S3?"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from txlog.errors import InvalidRequestError, UnsupportedStoreError
from txlog.storage.backends.backend import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Backend

MAX_DELETED = 1000
"""Objects that one request deletes."""


class S3(Backend):
    """Amazon S3, and servers that speak its protocol."""

    schemes = ("s3", "s3a")
    table_scheme = "s3"
    package = "s3fs"
    extra = "s3"
    driver = "s3fs.core.S3FileSystem"
    credentials = "key, secret and token, without them AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile"
    public_options = frozenset({"endpoint_url", "region_name", "signature_version"})
    nested_options = ("endpoint_url", "region_name", "verify", "use_ssl", "api_version")
    unsent_errors = frozenset(
        {
            "CredentialRetrievalError", "InvalidConfigError", "NoRegionError", "ParamValidationError",
            "TokenRetrievalError", "UnknownEndpointError",
        }
    )  # fmt: skip
    credential_errors = frozenset(
        {
            "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "SSOTokenLoadError",
            "UnauthorizedSSOTokenError",
        }
    )  # fmt: skip
    # S3 returns these codes with status 400.
    denied_codes = frozenset({"AuthorizationHeaderMalformed", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
    hadoop_scheme = "s3a"
    hadoop_package = "org.apache.hadoop:hadoop-aws:{}"
    hadoop_setting = "spark.hadoop.fs.s3a.access.key"
    unreachable_errors = frozenset({"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError"})

    @classmethod
    def settings(cls, options: Mapping[str, object]) -> dict[str, Any]:
        given = options.get("config_kwargs") or {}
        if not isinstance(given, Mapping):
            raise InvalidRequestError(f"storage option 'config_kwargs' must be a mapping, found {type(given).__name__}")
        defaults = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S, "max_pool_connections": 32}
        return {**options, "config_kwargs": {**defaults, **given, "retries": {"max_attempts": 0}}}

    def prepare(self, url: str) -> None:
        if "IfNoneMatch" not in self.fs.s3.meta.service_model.operation_model("PutObject").input_shape.members:
            raise UnsupportedStoreError(
                f"{url}: this version of botocore drops the condition of a create; upgrade botocore to 1.36 or later"
            )
        self.fs.retries = 1

    def read(self, key: str) -> bytes:
        # Newer versions of s3fs ask for the size first unless this is set. Older ones do not know the parameter.
        at_once = "max_concurrency" in inspect.signature(self.fs._cat_file).parameters
        data: bytes = self.fs.cat_file(key, **({"max_concurrency": 1} if at_once else {}))
        return data

    def remove_many(self, keys: Sequence[str]) -> None:
        bucket, _, _ = keys[0].partition("/")
        for first in range(0, len(keys), MAX_DELETED):
            objects = [{"Key": key.partition("/")[2]} for key in keys[first : first + MAX_DELETED]]
            wanted = {"Objects": objects, "Quiet": True}
            more = getattr(self.fs, "req_kw", {})
            answer = self.fs.call_s3("delete_objects", Bucket=bucket, Delete=wanted, **more)
            for error in answer.get("Errors", ()):
                raise OSError(f"{error.get('Code')}: {error.get('Key')} was not deleted")

    def list_names(self, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
        page: dict[str, str] = {"StartAfter": prefix + start_after} if start_after else {}
        while True:
            answer = self.fs.call_s3(
                "list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **page, **getattr(self.fs, "req_kw", {})
            )
            yield from (found["Key"] for found in answer.get("Contents", ()))
            yield from (found["Prefix"] for found in answer.get("CommonPrefixes", ()))
            if not answer.get("IsTruncated"):
                return
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    def endpoint_url(self) -> str:
        return str(self.fs.s3.meta.endpoint_url)
