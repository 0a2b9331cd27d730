"""How does gcsfs keep the port's promises on Google Cloud Storage?"""

from __future__ import annotations

import datetime
import types
from collections.abc import Iterator, Mapping
from typing import Any

from txlog.core.envelope import MAX_OBJECT_BYTES
from txlog.storage.backends.backend import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Backend, full_name


class Gcs(Backend):
    """Google Cloud Storage."""

    schemes = ("gs", "gcs")
    table_scheme = "gs"
    package = "gcsfs"
    extra = "gcs"
    driver = "gcsfs.core.GCSFileSystem"
    # gcsfs sends objects of 50 MB and more in parts.
    create_options = types.MappingProxyType({"chunksize": MAX_OBJECT_BYTES + 1})
    credentials = "token and project, without them GOOGLE_APPLICATION_CREDENTIALS"
    public_options = frozenset({"endpoint_url", "project"})
    credential_errors = frozenset({"DefaultCredentialsError"})
    hadoop_scheme = "gs"
    hadoop_package = "com.google.cloud.bigdataoss:gcs-connector"
    hadoop_setting = "spark.hadoop.fs.gs.auth.type"

    @classmethod
    def settings(cls, options: Mapping[str, object]) -> dict[str, Any]:
        if options.get("requests_timeout") is not None:
            return dict(options)
        # The driver's package installs aiohttp.
        import aiohttp

        # gcsfs would wait forever.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
        return {**options, "requests_timeout": timeout}

    @classmethod
    def driver_class(cls, registered: type) -> type:
        """Return gcsfs' own class, which is below the one that gcsfs registers.

        The registered class asks for the kind of a bucket by gRPC, again before each request until it gets an answer.
        It also leaves out the condition of a create in a zonal bucket.
        """
        if full_name(registered) != "gcsfs.extended_gcsfs.ExtendedGcsFileSystem":
            return registered
        return next((one for one in registered.__mro__ if full_name(one) == cls.driver), registered)

    def prepare(self, url: str) -> None:
        # A decorator of this method makes six attempts with up to 16 s between them, and has no setting to change that.
        once = getattr(getattr(type(self.fs), "_request", None), "__wrapped__", None)
        if once is not None:
            self.fs._request = types.MethodType(once, self.fs)

    def stat(self, key: str) -> tuple[int, datetime.datetime | None]:
        # `info` of gcsfs would also ask for a folder of that name.
        bucket, _, name = key.partition("/")
        found = self.fs.call("GET", "b/{}/o/{}", bucket, name, json_out=True)
        return int(found["size"]), datetime.datetime.fromisoformat(found["updated"])

    def list_names(self, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
        # Unlike S3, Google includes the start in the list.
        page: dict[str, str] = {"startOffset": prefix + start_after} if start_after else {}
        while True:
            answer = self.fs.call("GET", "b/{}/o", bucket, prefix=prefix, delimiter="/", json_out=True, **page)
            yield from (found["name"] for found in answer.get("items", ()))
            yield from answer.get("prefixes", ())
            if not answer.get("nextPageToken"):
                return
            page["pageToken"] = answer["nextPageToken"]

    def endpoint_url(self) -> str:
        return str(self.fs._location)
