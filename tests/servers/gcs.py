"""How do tests run the Google driver without Google Cloud Storage? With a server of the JSON API for objects, in
memory.

Semantics are Google's (Cloud Storage JSON API reference: Objects insert, get, list, delete; resumable uploads; request
preconditions): `ifGenerationMatch=0` on an object that exists is 412 conditionNotMet. A resumable upload gets this
answer at its end. There is no authentication.

    python -m tests.servers.gcs [--page N] [--ignore-conditions]
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import re
import urllib.parse
from dataclasses import dataclass, field

from tests.servers.http import Request, Response, main
from tests.servers.objects import BUCKET, Bucket, Object, slice_of

_OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_LISTING = re.compile(r"/storage/v1/b/([^/]+)/o")
_UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")


@dataclass(slots=True, kw_only=True)
class _Upload:
    """A resumable upload that is not finished."""

    bucket: str
    name: str
    condition: bool
    data: bytearray = field(default_factory=bytearray)


class Gcs:
    """The server."""

    def __init__(self, *, page: int = 1000, conditions: bool = True) -> None:
        self._buckets = {BUCKET: Bucket()}
        self._page = page
        self._conditions = conditions
        self._uploads: dict[str, _Upload] = {}
        self._upload_ids = map("upload-{:020d}".format, itertools.count(1))

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        # Slashes in names of objects are encoded.
        path = request.target.partition("?")[0]
        query = request.query
        if (match := _UPLOAD.fullmatch(path)) and request.method in {"POST", "PUT", "DELETE"}:
            return self._upload(request, urllib.parse.unquote(match[1]), query)
        if match := _OBJECT.fullmatch(path):
            return self._object(request, urllib.parse.unquote(match[1]), urllib.parse.unquote(match[2]), query)
        if (match := _LISTING.fullmatch(path)) and request.method == "GET":
            return self._list(urllib.parse.unquote(match[1]), query)
        return error(404, "notFound", f"no such request: {request.method} {path}")

    def _upload(self, request: Request, bucket: str, query: dict[str, str]) -> Response:
        if bucket not in self._buckets:
            return error(404, "notFound", "The specified bucket does not exist.")
        condition = query.get("ifGenerationMatch") == "0"
        if "upload_id" in query:
            return self._go_on(request, query["upload_id"])
        if query.get("uploadType") == "multipart":
            name, data = _parts(request)
            return self._insert(bucket, name, data, condition)
        if query.get("uploadType") == "resumable":
            upload_id = next(self._upload_ids)
            name = query.get("name") or json.loads(request.body)["name"]
            self._uploads[upload_id] = _Upload(bucket=bucket, name=name, condition=condition)
            where = f"http://{request.headers['host']}/upload/storage/v1/b/{urllib.parse.quote(bucket)}/o"
            return Response(headers={"Location": f"{where}?uploadType=resumable&upload_id={upload_id}"})
        return error(400, "invalid", "an upload has one of the types multipart and resumable here")

    def _go_on(self, request: Request, upload_id: str) -> Response:
        upload = self._uploads.get(upload_id)
        if upload is None:
            return error(410, "gone", "no such upload")
        if request.method == "DELETE":
            del self._uploads[upload_id]
            return Response(status=499)
        upload.data += request.body
        total = request.headers["content-range"].rpartition("/")[2]
        if total == "*" or len(upload.data) < int(total):
            return Response(status=308, headers={"Range": f"bytes=0-{len(upload.data) - 1}"})
        del self._uploads[upload_id]
        return self._insert(upload.bucket, upload.name, bytes(upload.data), upload.condition)

    def _insert(self, bucket: str, name: str, data: bytes, condition: bool) -> Response:
        if self._conditions and condition and self._buckets[bucket].get(name) is not None:
            return error(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")
        return _json(_resource(bucket, name, self._buckets[bucket].put(name, data)))

    def _object(self, request: Request, bucket_name: str, name: str, query: dict[str, str]) -> Response:
        bucket = self._buckets.get(bucket_name)
        found = bucket.get(name) if bucket else None
        if bucket is None or found is None:
            return error(404, "notFound", f"No such object: {bucket_name}/{name}")
        if request.method == "DELETE":
            bucket.delete(name)
            return Response(status=204)
        if query.get("alt") != "media":
            return _json(_resource(bucket_name, name, found))
        if "range" not in request.headers:
            return Response(body=found.data)
        wanted = slice_of(request.headers["range"], len(found.data))
        if wanted is None:
            return error(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        start, end = wanted
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(found.data)}"}
        return Response(status=206, headers=headers, body=found.data[start:end])

    def _list(self, bucket_name: str, query: dict[str, str]) -> Response:
        bucket = self._buckets.get(bucket_name)
        if bucket is None:
            return error(404, "notFound", "The specified bucket does not exist.")
        first = query.get("pageToken") or query.get("startOffset", "")
        size = min(self._page, int(query.get("maxResults", self._page)))
        page = bucket.list(query.get("prefix", ""), query.get("delimiter", ""), first, size)
        answer: dict[str, object] = {"kind": "storage#objects"}
        if page.objects:
            answer["items"] = [_resource(bucket_name, name, found) for name, found in page.objects]
        if page.folders:
            answer["prefixes"] = page.folders
        if page.next_name:
            answer["nextPageToken"] = page.next_name
        return _json(answer)


def error(status: int, code: str, message: str = "") -> Response:
    """Return an error in Google's form."""
    errors = [{"message": message or code, "domain": "global", "reason": code}]
    return _json({"error": {"code": status, "message": message or code, "errors": errors}}, status)


def _json(value: object, status: int = 200) -> Response:
    return Response(status=status, headers={"Content-Type": "application/json"}, body=json.dumps(value).encode())


def _resource(bucket: str, name: str, found: Object) -> dict[str, object]:
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(found.data)),
        "generation": str(found.generation),
        "timeCreated": found.iso_date,
        "updated": found.iso_date,
        "etag": found.etag,
        "md5Hash": base64.b64encode(bytes.fromhex(found.etag)).decode(),
    }


def _parts(request: Request) -> tuple[str, bytes]:
    """Return (name, data) of a multipart upload.

    The driver ends lines with a line feed alone, and Google accepts both.
    """
    boundary = request.headers["content-type"].partition("boundary=")[2].strip('"').encode()
    body = request.body.removeprefix(b"--" + boundary)
    metadata, _, rest = body.partition(b"\n--" + boundary)
    name: str = json.loads(re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[1])["name"]
    data = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1].removesuffix(b"--").removesuffix(b"--" + boundary)
    return name, data[: -2 if data.endswith(b"\r\n") else -1]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--page", type=int, default=1000)
    parser.add_argument("--ignore-conditions", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    main(Gcs(page=given.page, conditions=not given.ignore_conditions).handle)
