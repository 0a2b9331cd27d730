"""How do tests run the S3 driver without S3? With a server of S3's requests for objects, in memory, one at a time.

Semantics are Amazon's (its API reference, PutObject, CompleteMultipartUpload, ListObjectsV2 and "Conditional writes"):
`If-None-Match: *` on an object that exists is 412 PreconditionFailed with a Condition. URLs have path style only. The
access key must be the right one; signatures are not verified.

    python -m tests.servers.s3 [--page N] [--ignore-conditions] [--latency-ms N]

A page of a listing has N names, by default as many as the request asks for. Some servers, such as s3rver and rclone,
ignore the condition and overwrite. With `--ignore-conditions` this server does the same. With `--latency-ms` each
request takes so long. `GET /-/requests` answers how many requests there were.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import urllib.parse
import xml.etree.ElementTree as ET
from xml.sax.saxutils import escape

from tests.servers.http import Request, Response, main
from tests.servers.objects import BUCKET, Bucket, Object, slice_of

ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "secretsecretsecretsecretsecretsecretsecr"
COUNTER = "-/requests"
"""The path of the number of requests so far."""
_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3:
    """The server."""

    def __init__(self, *, page: int = 1000, conditions: bool = True) -> None:
        self._buckets = {BUCKET: Bucket()}
        self._page = page
        self._conditions = conditions
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._upload_ids = map(str, itertools.count(1))
        self._requests = 0

    def handle(self, request: Request) -> Response:
        """Answer one request."""
        if request.path == COUNTER:
            return Response(body=str(self._requests).encode())
        self._requests += 1
        if f"Credential={ACCESS_KEY}/" not in request.headers.get("authorization", ""):
            return error(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
        bucket_name, _, key = request.path.partition("/")
        bucket = self._buckets.get(bucket_name)
        if bucket is None:
            return error(404, "NoSuchBucket", "The specified bucket does not exist")
        if not key:
            if request.method == "POST" and "delete" in request.query:
                for found in ET.fromstring(_body(request)).iter():
                    if found.tag.endswith("Key"):
                        bucket.delete(found.text or "")
                return _document("DeleteResult", "")
            return _list(bucket, bucket_name, request.query, self._page) if request.method == "GET" else Response()
        return self._handle_object(request, bucket, bucket_name, key)

    def _handle_object(self, request: Request, bucket: Bucket, bucket_name: str, key: str) -> Response:
        query = request.query
        match request.method:
            case "GET" | "HEAD":
                return _get(request, bucket.get(key))
            case "PUT" if "uploadId" in query:
                part = _body(request)
                self._uploads[query["uploadId"]][int(query["partNumber"])] = part
                return Response(headers={"ETag": f'"{hashlib.md5(part).hexdigest()}"'})
            case "PUT":
                if refusal := self._precondition(request, bucket, key):
                    return refusal
                return Response(headers={"ETag": f'"{bucket.put(key, _body(request)).etag}"'})
            case "POST" if "uploads" in query:
                upload = next(self._upload_ids)
                self._uploads[upload] = {}
                return _xml("InitiateMultipartUploadResult", Bucket=bucket_name, Key=key, UploadId=upload)
            case "POST" if "uploadId" in query:
                if refusal := self._precondition(request, bucket, key):
                    return refusal
                parts = self._uploads.pop(query["uploadId"], None)
                if parts is None:
                    return error(404, "NoSuchUpload", "The specified upload does not exist.")
                numbers = [
                    int(found.text or 0)
                    for found in ET.fromstring(request.body).iter()
                    if found.tag.endswith("PartNumber")
                ]
                made = bucket.put(key, b"".join(parts[number] for number in numbers))
                return _xml("CompleteMultipartUploadResult", Bucket=bucket_name, Key=key, ETag=f'"{made.etag}"')
            case "DELETE":
                if "uploadId" in query:
                    self._uploads.pop(query["uploadId"], None)
                else:
                    bucket.delete(key)
                return Response(status=204)
        return error(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")

    def _precondition(self, request: Request, bucket: Bucket, key: str) -> Response | None:
        if self._conditions and request.headers.get("if-none-match") == "*" and bucket.get(key) is not None:
            message = "At least one of the pre-conditions you specified did not hold"
            return error(412, "PreconditionFailed", message, "<Condition>If-None-Match</Condition>")
        return None


def error(status: int, code: str, message: str = "", more: str = "") -> Response:
    """Return an error in S3's form."""
    body = (
        '<?xml version="1.0" '
        f'encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message or code)}</Message>{more}'
        "<RequestId>0</RequestId></Error>"
    )
    return Response(status=status, headers={"Content-Type": "application/xml"}, body=body.encode())


def _get(request: Request, found: Object | None) -> Response:
    if found is None:
        return error(404, "NoSuchKey", "The specified key does not exist.")
    headers = {
        "ETag": f'"{found.etag}"',
        "Last-Modified": found.http_date,
        "Content-Type": "binary/octet-stream",
        "Content-Length": str(len(found.data)),
    }
    if request.method == "HEAD" or "range" not in request.headers:
        return Response(headers=headers, body=found.data)
    wanted = slice_of(request.headers["range"], len(found.data))
    if wanted is None:
        return error(416, "InvalidRange", "The requested range is not satisfiable")
    start, end = wanted
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(found.data)}"
    return Response(status=206, headers=headers, body=found.data[start:end])


def _list(bucket: Bucket, name: str, query: dict[str, str], most: int) -> Response:
    if query.get("list-type") != "2":
        return _xml("LocationConstraint")
    prefix, after = query.get("prefix", ""), query.get("start-after", "")
    first = query.get("continuation-token") or (after and after + "\0")
    page = bucket.list(prefix, query.get("delimiter", ""), first, min(most, int(query.get("max-keys", most))))
    encode = urllib.parse.quote if query.get("encoding-type") == "url" else escape
    body = [f"<Name>{name}</Name><IsTruncated>{'true' if page.next_name else 'false'}</IsTruncated>"]
    body += [f"<EncodingType>{kind}</EncodingType>" for kind in [query.get("encoding-type")] if kind]
    body += [f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" for token in [page.next_name] if token]
    body += [
        f"<Contents><Key>{encode(key)}</Key><LastModified>{found.iso_date}</LastModified><ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, found in page.objects
    ]
    body += [f"<CommonPrefixes><Prefix>{encode(folder)}</Prefix></CommonPrefixes>" for folder in page.folders]
    return _document("ListBucketResult", "".join(body))


def _xml(root: str, **fields: str) -> Response:
    return _document(root, "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields.items()))


def _document(root: str, inside: str) -> Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{_XMLNS}">{inside}</{root}>'
    return Response(headers={"Content-Type": "application/xml"}, body=text.encode())


def _body(request: Request) -> bytes:
    """Return the bytes to store: `aws-chunked` bodies have sizes, and perhaps signatures, between their parts."""
    body = request.body
    if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING"):
        return body
    parts: list[bytes] = []
    position = 0
    while True:
        line = body.index(b"\r\n", position)
        size = int(body[position:line].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(body[line + 2 : line + 2 + size])
        position = line + 2 + size + 2


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--page", type=int, default=1000)
    parser.add_argument("--ignore-conditions", action="store_true")
    parser.add_argument("--latency-ms", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    main(S3(page=given.page, conditions=not given.ignore_conditions).handle, given.latency_ms)
