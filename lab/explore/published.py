"""What do readers of a published table find? A reader that shares no code with the publisher and the formats.

It reads the chain of publications, the Delta log, and files of words. It compares them with the truth about the
partitions. A version of a table can be read while it is the newest one of its format, and until `publish.retention.ms`
after the next one is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from lab.explore.keys import superseded
from lab.explore.oracle import Truth
from lab.explore.world import GHOST, WRITTEN_AT
from txlog.core import envelope
from txlog.core.names import TopicPartition
from txlog.core.records import Publication
from txlog.core.records.publications import PublishedFile

Words = dict[TopicPartition, dict[str, int]]


@dataclass(slots=True)
class _Version:
    """The tables after one publication."""

    publication: Publication
    digest: str
    files: dict[str, PublishedFile]
    words: list[str] = field(default_factory=list)


def wrong_tables(
    topic: str,
    files: Mapping[str, bytes],
    truths: Mapping[TopicPartition, Truth],
    now_ms: int,
    retention_ms: int,
    *,
    is_compacted: bool = False,
) -> str | None:
    """Return what is wrong with the published tables of a topic, whose objects are `files`.

    In a topic that `is_compacted` a table may lack a row that a later one of its key supersedes.
    """
    try:
        versions = _versions(topic, files)
        return (
            _wrong_rows(topic, versions, truths, is_compacted=is_compacted)
            or _wrong_delta(topic, files, versions)
            or _wrong_iceberg(topic, files, versions)
            or _missing(topic, files, versions, now_ms, retention_ms)
        )
    except _WrongError as error:
        return f"18 published: {topic}: {error}"


def published_words(topic: str, files: Mapping[str, bytes]) -> set[str] | None:
    """Return the rows of the newest publication; None if the topic has none."""
    versions = _versions(topic, files)
    return set(versions[-1].words) if versions else None


class _WrongError(Exception):
    pass


# -- the chain --------------------------------------------------------------------------------------------------------


def _versions(topic: str, files: Mapping[str, bytes]) -> list[_Version]:
    found: list[_Version] = []
    folder = f"{topic}/publication/"
    for path, data in _ever(files, folder).items():
        publication, _ = envelope.decode(data, Publication, path)
        if publication.number != len(found):
            raise _WrongError(f"publication {publication.number} follows {len(found)} others")
        if found and publication.previous != found[-1].digest:
            raise _WrongError(f"publication {publication.number} does not follow {publication.number - 1}")
        held = {} if not found or publication.whole else dict(found[-1].files)
        for gone in publication.removed:
            if held.pop(gone, None) is None:
                raise _WrongError(f"publication {publication.number} removes {gone}, which was not there")
        held |= {file.path: file for file in publication.added}
        version = _Version(publication, envelope.digest(data), held)
        version.words = [word for file in held.values() for word in _words(topic, files, file)]
        found.append(version)
    return found


def _ever(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Return the JSON objects of a folder in their order, also those that were deleted."""
    paths = {path.removeprefix(GHOST) for path in files if path.endswith(".json")}
    return {path: files.get(path, files.get(GHOST + path, b"")) for path in sorted(paths) if path.startswith(folder)}


def _words(topic: str, files: Mapping[str, bytes], file: PublishedFile) -> list[str]:
    """Return the rows of a file that are in the tables, also if the file is deleted by now."""
    path = f"{topic}/{file.path}"
    data = files.get(path, files.get(GHOST + path))
    if data is None:
        raise _WrongError(f"{file.path} is named, and was never written")
    words = [word for _, word in json.loads(data)]
    if len(words) != file.rows:
        raise _WrongError(f"{file.path} has {len(words)} rows, and {file.rows} are named")
    gone = {row for run in file.removed for row in range(run.first_row, run.end_row)}
    return [word for row, word in enumerate(words) if row not in gone]


# -- rows -------------------------------------------------------------------------------------------------------------


def _wrong_rows(
    topic: str, versions: list[_Version], truths: Mapping[TopicPartition, Truth], *, is_compacted: bool
) -> str | None:
    committed = {
        word: (tp.partition, at)
        for tp, truth in truths.items()
        if tp.topic == topic
        for at, word in truth.committed.items()
    }
    starts = {tp.partition: truth.log_start_offset for tp, truth in truths.items() if tp.topic == topic}
    kept = {word for word, (partition, at) in committed.items() if at >= starts[partition]}
    brought: set[str] = set()
    for before, version in zip([None, *versions], versions, strict=False):
        publication = version.publication
        where = f"publication {publication.number}"
        shown = set(version.words)
        if not (publication.formats or shown):
            continue  # no reader has a version of it: tables that have ended forget their files
        if len(shown) < len(version.words):
            raise _WrongError(f"{where} shows rows twice: {sorted(version.words)}")
        if shown - committed.keys():
            raise _WrongError(f"{where} shows rows that are not committed: {sorted(shown - committed.keys())}")
        due = {
            word
            for word in kept
            if (at := committed[word])[1] < (cut := publication.partitions[at[0]]).end_offset
            and not any(run.first_offset <= at[1] < run.end_offset for run in cut.hidden)
        }
        if is_compacted:
            rows = {committed[word][1]: word for word in shown}
            due = {word for word in due if word in shown or not superseded(word, committed[word][1], rows)}
        if due - shown or (shown & kept) - due:
            raise _WrongError(f"{where} shows {sorted(shown)}, and its cut holds {sorted(due)}")
        for letter in {word[0] for word in kept}:
            whole = {word for word in kept if word[0] == letter}
            if shown & whole and whole - shown:
                raise _WrongError(f"{where} shows {sorted(shown & whole)} of {sorted(whole)}")
        earlier = set() if before is None else set(before.words)
        if is_compacted:
            earlier = {word for word in earlier if word in shown or not superseded(word, committed[word][1], rows)}
        if (earlier - shown) & kept:
            raise _WrongError(f"{where} lacks rows of the one before: {sorted((earlier - shown) & kept)}")
        if publication.operation == "replace":
            assert before is not None
            if shown - earlier:
                raise _WrongError(f"{where} replaces files, and brings rows: {sorted(shown - earlier)}")
            if (publication.partitions, publication.cut_at) != (
                before.publication.partitions,
                before.publication.cut_at,
            ):
                raise _WrongError(f"{where} replaces files, and changes the cut")
            continue
        # A reader that follows the table reads only the files that are new to it.
        for file in publication.added if before is not None else version.files.values():
            # A whole publication repeats the files that were there.
            if before is not None and publication.whole and before.files.get(file.path) == file:
                continue
            if before is not None and (file.removed or file.path in before.files):
                raise _WrongError(f"{where} appends {file.path}, of which readers have, or must leave out, rows")
        again = (shown - earlier) & brought
        if again:
            raise _WrongError(f"{where} brings rows again: {sorted(again)}")
        brought |= shown
    return None


# -- formats ----------------------------------------------------------------------------------------------------------


def _wrong_delta(topic: str, files: Mapping[str, bytes], versions: list[_Version]) -> str | None:
    """Every version of the Delta table has the files and removed rows of its publication."""
    live: dict[str, int] = {}
    first = 0
    folder = f"{topic}/_delta_log/"
    for number, (path, data) in enumerate(_ever(files, folder).items()):
        if path != f"{folder}{number:020d}.json":
            raise _WrongError(f"{path} is there, and version {number} is not")
        actions = [json.loads(line) for line in data.splitlines()]
        info = actions[0]["commitInfo"]
        first = int(info["operationParameters"]["txlog.publication"]) - number if not number else first
        if first + number >= len(versions):
            raise _WrongError(f"{path} shows a publication that does not exist")
        version = versions[first + number]
        if (info.get("txlog.table") or info["txlog"])["digest"] != version.digest:
            raise _WrongError(f"{path} is not of publication {first + number}")
        for action in actions:
            if "remove" in action and live.pop(unquote(action["remove"]["path"]), None) is None:
                raise _WrongError(f"{path} removes what was not there: {action['remove']['path']}")
            if "add" in action:
                added = action["add"]
                live[unquote(added["path"])] = added.get("deletionVector", {}).get("cardinality", 0)
        named = {file.path: sum(run.end_row - run.first_row for run in file.removed) for file in version.files.values()}
        if live != named:
            raise _WrongError(f"{path} has the files {live}, and its publication {named}")
    return None


def _wrong_iceberg(topic: str, files: Mapping[str, bytes], versions: list[_Version]) -> str | None:
    """Every version of the Iceberg table is of its publication, and what it names was there before.

    Manifests are not read.
    """
    first = next((each.publication.formats["iceberg"] for each in versions if "iceberg" in each.publication.formats), 0)
    folder = f"{topic}/metadata/"
    there = [each for each in files if each.startswith(folder) and each.endswith(".metadata.json")]
    for number in range(len(there)):
        path = f"{folder}v{number + 1}.metadata.json"
        if path not in files:
            raise _WrongError(f"{path} is not there, and a later version is")
        if first + number >= len(versions):
            raise _WrongError(f"{path} shows a publication that does not exist")
        snapshots = json.loads(files[path])["snapshots"]
        newest, publication = snapshots[-1], versions[first + number].publication
        if newest["timestamp-ms"] != publication.created_at or len(snapshots) != number + 1:
            raise _WrongError(f"{path} is not of publication {publication.number}")
        rows = int(newest["summary"]["total-records"]) - int(newest["summary"]["total-position-deletes"])
        if rows != len(versions[first + number].words):
            raise _WrongError(
                f"{path} counts {rows} rows, and its publication has {len(versions[first + number].words)}"
            )
        for each in snapshots:
            listed = folder + each["manifest-list"].rpartition("/")[2]
            if listed not in files:
                raise _WrongError(f"{path} names {listed}, which is not there")
    return None


def _missing(
    topic: str, files: Mapping[str, bytes], versions: list[_Version], now_ms: int, retention_ms: int
) -> str | None:
    """Every version that can be read now has its files."""
    if not versions:
        return None
    for what, version in _readable(topic, files, versions, now_ms, retention_ms):
        for path in version.files:
            if f"{topic}/{path}" not in files:
                raise _WrongError(f"{what} names {path}, which is gone")
        number = version.publication.number
        whole = max(
            each.publication.number
            for each in versions[: number + 1]
            if each.publication.whole or not each.publication.number
        )
        for needed in range(whole, number + 1):
            if f"{topic}/publication/{needed:020d}.json" not in files:
                raise _WrongError(f"{what} needs publication {needed}, which is gone")
        first = version.publication.formats.get("delta")
        if first is not None and f"{topic}/_delta_log/{number - first:020d}.json" in _ever(
            files, f"{topic}/_delta_log/"
        ):
            _check_log(topic, files, number - first, what)
    return None


def _check_log(topic: str, files: Mapping[str, bytes], version: int, what: str) -> None:
    """Raise if a reader of that version of the Delta table finds no checkpoint, or not the versions behind it."""
    folder = f"{topic}/_delta_log/"
    checkpoints = [each for each in range(version + 1) if f"{folder}{each:020d}.checkpoint.parquet" in files]
    begin = checkpoints[-1] if checkpoints else -1
    for needed in range(begin + 1, version + 1):
        if f"{folder}{needed:020d}.json" not in files:
            raise _WrongError(f"{what} needs version {needed} of the Delta log, which is gone")
    hint = files.get(f"{folder}_last_checkpoint")
    if hint is not None and f"{folder}{json.loads(hint)['version']:020d}.checkpoint.parquet" not in files:
        raise _WrongError(f"_last_checkpoint names version {json.loads(hint)['version']}, whose checkpoint is gone")


def _readable(
    topic: str, files: Mapping[str, bytes], versions: list[_Version], now_ms: int, retention_ms: int
) -> Iterator[tuple[str, _Version]]:
    newest = versions[-1].publication
    if newest.formats:
        yield f"the newest publication {newest.number}", versions[-1]
    for name in sorted({name for version in versions for name in version.publication.formats}):
        replaced_ms: int | None = None
        if name not in newest.formats:
            ended = next(each for each in versions if each.publication.number and name not in each.publication.formats)
            replaced_ms = _written_ms(files, f"{topic}/publication/{ended.publication.number:020d}.json")
        for version in reversed(versions):
            first = version.publication.formats.get(name)
            if first is None:
                continue
            number = version.publication.number - first
            path = f"{topic}/_delta_log/{number:020d}.json"
            if name == "iceberg":
                path = f"{topic}/metadata/v{number + 1}.metadata.json"
            if path not in files and GHOST + path not in files:
                continue
            shown_ms = _written_ms(files, path)
            if name not in newest.formats and not version.files:
                # A table that ended after it was empty for as long is gone at once.
                replaced_ms = shown_ms
            if replaced_ms is not None and now_ms - replaced_ms >= retention_ms:
                break
            yield f"version {number} of the {name} table, which can be read,", version
            replaced_ms = shown_ms


def _written_ms(files: Mapping[str, bytes], path: str) -> int:
    return int(files.get(WRITTEN_AT + path, files.get(GHOST + WRITTEN_AT + path, b"0")))
