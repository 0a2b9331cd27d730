"""How does adlfs keep the port's promises on Azure?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from txlog.errors import UnsupportedStoreError
from txlog.storage.backends.backend import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Backend, Verdict


class Azure(Backend):
    """Azure Blob Storage and Data Lake Storage."""

    schemes = ("abfs", "abfss", "az")
    table_scheme = "abfss"
    package = "adlfs"
    extra = "azure"
    driver = "adlfs.spec.AzureBlobFileSystem"
    is_mode_named = False
    credentials = (
        "account_name with account_key, sas_token or client_id, client_secret and tenant_id, "
        "without them AZURE_STORAGE_*"
    )
    public_options = frozenset({"account_name"})
    credential_errors = frozenset({"ClientAuthenticationError"})
    unreachable_errors = frozenset({"ServiceRequestError"})
    hadoop_scheme = "abfss"
    hadoop_package = "org.apache.hadoop:hadoop-azure:{}"
    hadoop_setting = "spark.hadoop.fs.azure.account.key"

    @classmethod
    def split_host(cls, host: str) -> tuple[str, dict[str, object]]:
        container, at, server = host.partition("@")
        return container, {"account_name": server.partition(".")[0]} if at else {}

    @classmethod
    def hadoop_url(cls, url: str, options: Mapping[str, object]) -> str:
        account = options.get("account_name")
        if not isinstance(account, str):
            raise UnsupportedStoreError(
                f"{url}: Hadoop's name of a container includes its account. "
                "hint: give it as the storage option 'account_name'"
            )
        container, slash, folder = url.split("://", 1)[1].rstrip("/").partition("/")
        return f"{cls.hadoop_scheme}://{container}@{account}.dfs.core.windows.net{slash}{folder}"

    def prepare(self, url: str) -> None:
        # The clients of containers and blobs share these two with the client of the service.
        service = self.fs.service_client
        service._config.retry_policy.total_retries = 0
        connection = service._pipeline._transport.connection_config
        given = getattr(self.fs, "_timeout_kwargs", {})
        connection.timeout = given.get("connection_timeout", CONNECT_TIMEOUT_S)
        connection.read_timeout = given.get("read_timeout", READ_TIMEOUT_S)

    def remove(self, key: str) -> None:
        container, _, name = key.partition("/")

        async def removed() -> None:
            # Older versions of adlfs cannot remove a single file.
            async with self.fs.service_client.get_blob_client(container, name) as blob:
                await blob.delete_blob()

        self._run(removed)

    def list_names(self, bucket: str, prefix: str, start_after: str) -> Iterator[str]:
        """Yield all names: only accounts with a hierarchical namespace can begin in the middle."""

        async def listed() -> list[str]:
            async with self.fs.service_client.get_container_client(bucket) as container:
                return [found.name async for found in container.walk_blobs(name_starts_with=prefix, delimiter="/")]

        yield from self._run(listed)

    def endpoint_url(self) -> str:
        return str(self.fs.service_client.primary_endpoint)

    @classmethod
    def verdict(cls, error: BaseException) -> Verdict:
        # adlfs raises FileExistsError for every 409. The answer from which it made the error has the code.
        code = getattr(error.__context__, "error_code", None)
        if isinstance(error, FileExistsError) and getattr(code, "value", code) not in (None, "BlobAlreadyExists"):
            return Verdict.TRANSIENT
        return super().verdict(error)

    @classmethod
    def is_bucket_missing(cls, error: BaseException) -> bool:
        return "ContainerNotFound" in str(error)

    def _run(self, request: Any) -> Any:
        # Imported here, because the command line's help lists the backends and should not load fsspec.
        from fsspec.asyn import sync

        return sync(self.fs.loop, request)
