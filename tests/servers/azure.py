"""How do tests run the Azure driver without Azure? With a server of the requests for block blobs, in memory.

Semantics are Azure's (Blob service REST API: Put Blob, Put Block, Put Block List, Get Blob, Get Blob Properties, Delete
Blob, List Blobs; "Specifying conditional headers"): `If-None-Match: *` on a blob that exists is 409 BlobAlreadyExists.
The namespace is flat. The account must be the right one; signatures are not verified.

    python -m tests.servers.azure [--page N] [--ignore-conditions]
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

from tests.servers.http import Request, Response, main
from tests.servers.objects import BUCKET, Bucket, Object, slice_of

ACCOUNT = "testaccount"
ACCOUNT_KEY = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
_VERSION = "2026-02-06"


class Azure:
    """The server."""

    def __init__(self, *, page: int = 5000, conditions: bool = True) -> None:
        self._containers = {BUCKET: Bucket()}
        self._page = page
        self._conditions = conditions
        self._blocks: dict[str, dict[str, bytes]] = {}

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        if f"SharedKey {ACCOUNT}:" not in request.headers.get("authorization", ""):
            return error(403, "AuthenticationFailed", "Server failed to authenticate the request.")
        _, _, rest = request.path.partition("/")
        container_name, _, name = rest.partition("/")
        container = self._containers.get(container_name)
        if container is None:
            return error(404, "ContainerNotFound", "The specified container does not exist.")
        query = request.query
        if name:
            return self._blob(request, container, name, query)
        if query.get("comp") == "list":
            return _list(container, container_name, query, self._page)
        return Response(headers=_headers())

    def _blob(self, request: Request, container: Bucket, name: str, query: dict[str, str]) -> Response:
        found = container.get(name)
        match request.method, query.get("comp"):
            case "GET" | "HEAD", _:
                return _get(request, found)
            case "PUT", "block":
                self._blocks.setdefault(name, {})[query["blockid"]] = request.body
                return Response(status=201, headers=_headers())
            case "PUT", "blocklist":
                if self._exists(request, found):
                    return _exists_already()
                blocks = self._blocks.pop(name, {})
                ids = [block.text or "" for block in ET.fromstring(request.body)]
                if any(block not in blocks for block in ids):
                    return error(400, "InvalidBlockList", "The specified block list is invalid.")
                return _made(container.put(name, b"".join(blocks[block] for block in ids)))
            case "PUT", _:
                return _exists_already() if self._exists(request, found) else _made(container.put(name, request.body))
            case "DELETE", _:
                return Response(status=202, headers=_headers()) if container.delete(name) else _no_blob()
        return error(405, "UnsupportedHttpVerb", "The resource doesn't support the specified HTTP verb.")

    def _exists(self, request: Request, found: Object | None) -> bool:
        return self._conditions and request.headers.get("if-none-match") == "*" and found is not None


def error(status: int, code: str, message: str = "") -> Response:
    """Return an error in Azure's form."""
    body = (
        '<?xml version="1.0" '
        f'encoding="utf-8"?><Error><Code>{code}</Code><Message>{escape(message or code)}</Message></Error>'
    )
    headers = {**_headers(), "x-ms-error-code": code, "Content-Type": "application/xml"}
    return Response(status=status, headers=headers, body=body.encode())


def _exists_already() -> Response:
    return error(409, "BlobAlreadyExists", "The specified blob already exists.")


def _no_blob() -> Response:
    return error(404, "BlobNotFound", "The specified blob does not exist.")


def _headers(found: Object | None = None) -> dict[str, str]:
    headers = {"x-ms-request-id": "00000000-0000-0000-0000-000000000000", "x-ms-version": _VERSION}
    if found is not None:
        headers |= {"ETag": f'"{found.etag}-{found.generation}"', "Last-Modified": found.http_date}
    return headers


def _made(found: Object) -> Response:
    return Response(status=201, headers={**_headers(found), "x-ms-request-server-encrypted": "true"})


def _get(request: Request, found: Object | None) -> Response:
    if found is None:
        return _no_blob()
    size = len(found.data)
    headers = {
        **_headers(found),
        "Content-Type": "application/octet-stream",
        "Content-Length": str(size),
        "Accept-Ranges": "bytes",
        "x-ms-blob-type": "BlockBlob",
        "x-ms-meta-is_directory": "false",
    }
    asked = request.headers.get("x-ms-range") or request.headers.get("range")
    if request.method == "HEAD" or asked is None:
        return Response(headers=headers, body=found.data)
    wanted = slice_of(asked, size)
    if wanted is None:
        return error(416, "InvalidRange", "The range specified is invalid for the current size of the resource.")
    start, end = wanted
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return Response(status=206, headers=headers, body=found.data[start:end])


def _list(container: Bucket, name: str, query: dict[str, str], most: int) -> Response:
    size = min(most, int(query.get("maxresults", most)))
    page = container.list(query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", ""), size)
    # Objects and folders are in one list, ordered by name.
    entries = [(key, _entry(key, found)) for key, found in page.objects]
    entries += [(folder, f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>") for folder in page.folders]
    body = (
        '<?xml version="1.0" encoding="utf-8"?><EnumerationResults '
        f'ServiceEndpoint="http://localhost/" ContainerName="{name}">'
        f"<Prefix>{escape(query.get('prefix', ''))}</Prefix>"
        f"<Blobs>{''.join(text for _, text in sorted(entries))}</Blobs>"
        f"<NextMarker>{escape(page.next_name or '')}</NextMarker></EnumerationResults>"
    )
    return Response(headers={**_headers(), "Content-Type": "application/xml"}, body=body.encode())


def _entry(name: str, found: Object) -> str:
    return (
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{found.http_date}</Last-Modified>"
        f"<Etag>{found.etag}</Etag><Content-Length>{len(found.data)}</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties></Blob>"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--page", type=int, default=5000)
    parser.add_argument("--ignore-conditions", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    main(Azure(page=given.page, conditions=not given.ignore_conditions).handle)
