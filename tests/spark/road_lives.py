"""Random lives of two stores, one for each road of Spark: writes, reads and streams with restarts.

`python -m tests.spark.road_lives FOLDER SEED...` runs lives in its own session, also with PYSPARK_PIN_THREAD=false.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_txlog import activate, session
from tests.spark.limits import at_most
from tests.spark.road_frames import COLUMNS, Frame, build, draw, topic_schema
from tests.spark.test_stream_sink import forget_last_commit
from tests.spark.two_roads import Fault, Judge, Road, Twin, on, switch

KEYS = ("", "order_id", "carrier", "carrier,order_id")
STREAM_S = 120


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic of both stores."""

    name: str
    partitions: int
    columns: tuple[str, ...]
    keys: str
    config: dict[str, str]

    def keyless(self, row: str) -> bool:
        """Return whether a row, printed as a dict, has no key."""
        return "'carrier': None" in row if self.keys == "carrier" else not self.keys


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One run of a streaming query, from its start to its end."""

    inputs: tuple[Frame, ...]
    ends: str = "done"
    """done; fails (a task fails four times); raises (user's foreachBatch raises after its write); forgets (the crash
    between the two commits); switched (uninstall() or install() while it runs)."""
    source: dict[str, str]
    sink: dict[str, str]


class Life:
    """One life of two stores, drawn from a seed. `road` of a step is that of the first store."""

    def __init__(self, seed: int, spark: SparkSession, folder: Path, judge: Judge) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.judge = judge
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.told: list[str] = []
        self.twins = tuple(Twin(name, spark, folder) for name in ("mixed", "python"))
        self._spark = spark
        self._next = 0
        self.topics_columns: tuple[str, ...] = ()
        self._versions: dict[str, int] = {}
        self._streams = 0
        self.topics = [self._topic("events"), self._topic("copies")]

    def _topic(self, name: str, columns: tuple[str, ...] | None = None) -> Topic:
        draw = self.random
        config = {"inline.max.bytes": draw.choice(["0", "2000", "200000"])} if draw.random() < 0.4 else {}
        keys = draw.choice(KEYS)
        if columns is None:
            columns = tuple(sorted(draw.sample(sorted(COLUMNS), draw.choice([0, 1, 4, len(COLUMNS)]))))
            if name == "copies":
                columns = self.topics_columns = tuple(sorted({*self.topics_columns}))
            else:
                self.topics_columns = columns
        made = Topic(name=name, partitions=draw.choice([1, 2, 4]), columns=columns, keys=keys, config=config)
        for twin in self.twins:
            schema = topic_schema(columns).append(pa.field("text", pa.string()))
            options = dict(config) | ({"key.columns": keys} if keys else {})
            twin.log.store.create_topic(name, schema, made.partitions, config=options)
        self.tell("topic", made)
        return made

    def tell(self, *what: object) -> None:
        self.told.append(" ".join(map(str, what)))

    def run(self, steps: int = 5) -> None:
        """Live for some steps, and compare the twins after each."""
        try:
            self.save()
            for _ in range(steps):
                kind = self.random.choice([self.save, self.wrong, self.read, self.stream, self.stream])
                kind()
            self.read()
            for twin in self.twins:
                twin.close()
        except BaseException as error:
            error.add_note(f"life {self.seed}:\n" + "\n".join(self.told))
            raise

    def compare(self, what: object) -> None:
        """Compare all that the stores have."""
        mixed, python = self.twins
        for topic in self.topics:
            self.judge.rows(mixed, python, topic.name, what, keyless=topic.keyless)
        self.judge.ids(mixed, python, what)

    def each(self, road: Road, act: Callable[[Twin], Any]) -> tuple[Any, Any]:
        """Do the same on both stores, the first one by `road`: in this thread, in another one, or in another
        session."""
        where = self.random.choice(["here", "here", "thread", "session"])
        self.tell("  by", road, where)
        made = []
        for twin, own in zip(self.twins, (road, "python"), strict=True):
            twin.spark = twin.log.spark = self._spark.newSession() if where == "session" else self._spark
            with on(own):
                if where == "thread":
                    found: list[Any] = []

                    def run(twin: Twin = twin, found: list[Any] = found) -> None:
                        activate(twin.spark)
                        found.append(act(twin))

                    thread = threading.Thread(target=run)
                    thread.start()
                    thread.join()
                    made += found
                else:
                    made.append(act(twin))
        assert len(made) == 2, "a thread died"
        return made[0], made[1]

    def road(self) -> Road:
        return self.random.choice(["native", "native", "native", "python"])

    def frame(self, topic: Topic, **given: Any) -> Frame:
        made = replace(draw(self.random, self._next, topic.columns), **given)
        self._next += max(made.count, 1)
        return made

    # -- steps --------------------------------------------------------------------------------------------------------

    def save(self, frame: Frame | None = None, **options: Any) -> None:
        """Write a frame, perhaps twice under one version."""
        topic = self.random.choice(self.topics)
        frame = frame or self.frame(topic)
        times = 1
        if self.random.random() < 0.5:
            name = self.random.choice(["nightly", "hourly"])
            options["transactional.id"] = f"{name}-{topic.name}"
            if self.random.random() < 0.7:
                version = self._versions.get(options["transactional.id"], 0) + 1
                options["txn.version"] = self._versions[options["transactional.id"]] = version
                times = self.random.choice([1, 2])
        if self.random.random() < 0.3:
            options["compression.type"] = self.random.choice(["none", "snappy", "zstd", "lz4", "gzip"])
        if self.random.random() < 0.2:
            options["key"] = self.random.choice(["order_id", "carrier"])
        if self.random.random() < 0.2:
            frame = replace(frame, extra=(f"CAST(id % {topic.partitions} AS INT) AS partition",))
        observed = self.random.random() < 0.6
        for again in range(times):
            self.tell("save", topic.name, frame, options, f"observed={observed}")
            found = self._saved(topic, frame, options, observed=observed, skipped=again > 0 and not observed)
            # Otherwise both roads may fail alike.
            assert not isinstance(found, Fault), found

    def _saved(
        self, topic: Topic, frame: Frame, options: dict[str, Any], *, observed: bool, skipped: bool = False
    ) -> Any:
        ours, theirs = self.each(
            self.road(), lambda twin: twin.save(frame, self.folder, topic.name, options, observed=observed)
        )
        self.judge.outcomes(ours, theirs, (frame, options), skipped=skipped)
        self.compare((frame, options))
        return ours

    def wrong(self) -> None:
        """Write what a topic cannot take: the errors are the same, and nothing is stored."""
        topic = self.topics[0]
        frame = self.frame(topic, shape=self.random.choice(["range", "files", "shuffled"]))
        last = frame.first + frame.count - 1
        options: dict[str, Any] = {}
        extra, more = self.random.choice(
            [
                (f"NULLIF(id, {last}) AS order_id", {}),
                (f"IF(id = {last}, CAST(X'6bff' AS STRING), 'k') AS text", {}),
                (f"IF(id = {last}, {topic.partitions}, 0) AS partition", {}),
                (f"IF(id = {last}, -1, 0) AS partition", {}),
                ("'0' AS partition", {}),
                ("id AS strange", {}),
                ("CAST(id AS STRING) AS order_id", {}),
                ("raise_error(string(id)) AS text", {}),
                ("id AS _offset", {}),
                ("'k' AS text", {"topic": "nowhere"}),
                ("'k' AS text", {"key": "nowhere"}),
                ("'k' AS text", {"compression.type": "best"}),
                ("'k' AS text", {"txn.version": "1"}),
                ("'k' AS text", {"transactional.id": "x", "txn.version": "-1"}),
                ("'k' AS text", {"transactionalId": "x"}),
                ("'k' AS text", {"transaction.timeout.ms": "1"}),
            ]
        )
        options |= more
        frame = replace(frame, extra=(extra,))
        self.tell("wrong", topic.name, frame, options)
        self._saved(topic, frame, options, observed=False)

    def read(self) -> None:
        """Read with random options."""
        topic, draw = self.random.choice(self.topics), self.random
        options: dict[str, Any] = {}
        if draw.random() < 0.6:
            some = draw.sample(["order_id", "carrier", *topic.columns], 2 if topic.columns else 1)
            options["columns"] = draw.choice(
                ["*,_topic,_partition,_offset", "_offset,_partition", ",".join(some), "nowhere"]
            )
        if draw.random() < 0.4:
            options["where"] = draw.choice(
                [f"order_id > {self._next // 2}", "carrier = 'c1'", "order_id < 7 AND carrier IS NULL", "text ~ 3"]
            )
        which = draw.random()
        places = range(topic.partitions)
        if which < 0.2:
            starts = {str(place): draw.choice([-2, 0, 1, 5]) for place in places}
            options["startingOffsets"] = json.dumps({topic.name: starts})
        elif which < 0.3:
            options["startingTimestamp"] = draw.choice([0, 1])
        elif which < 0.4:
            options["startingOffsets"] = json.dumps({topic.name: {"0": 0}})
        which = draw.random()
        if which < 0.2:
            ends = {str(place): draw.choice([-1, 1, 100, 10**6]) for place in places}
            options["endingOffsets"] = json.dumps({topic.name: ends})
        elif which < 0.3:
            options["endingTimestamp"] = draw.choice([1, 4102444800000])
        if draw.random() < 0.3:
            options["isolation.level"] = draw.choice(["read_committed", "read_uncommitted", "none"])
        subscribe: str | None = topic.name
        if draw.random() < 0.3:
            options["rows"] = draw.choice(["latest", "latest", "latest", "all", "newest"])
            if draw.random() < 0.7:
                for name in [name for name in options if name.startswith(("starting", "ending", "isolation"))]:
                    del options[name]
        if draw.random() < 0.2:
            subscribe = None
            options |= draw.choice(
                [
                    {"assign": json.dumps({topic.name: [0]})},
                    {"subscribePattern": ".*s"},
                    {"subscribe": "events,nowhere"},
                ]
            )
        self.tell("read", subscribe, options)
        ours, theirs = self.each(self.road(), lambda twin: twin.read(subscribe, options))
        self.judge.outcomes(ours, theirs, options)

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self) -> None:
        """Run a query into `copies`, with restarts on one checkpoint."""
        draw = self.random
        name = f"stream-{self._streams}"
        kind = draw.choice(["files", "topic", "foreach"])
        target = self.topics[1]
        sink = {"transactional.id": draw.choice(["", name])} if kind != "foreach" else {}
        sink = {key: value for key, value in sink.items() if value}
        if draw.random() < 0.2:
            sink["compression.type"] = draw.choice(["snappy", "zstd"])
        self._streams += 1
        for number in range(draw.choice([1, 2, 3])):
            ends = draw.choice(["done", "done", "fails", "forgets", "switched"])
            if kind == "foreach":
                ends = draw.choice(["done", "raises"])
            frames = tuple(
                replace(self.frame(target), shape="range", extra=())
                for _ in range(draw.choice([1, 2] if number == 0 else [0, 1, 2]))
            )
            frames = tuple(each if each.count else replace(each, count=1) for each in frames)
            source: dict[str, str] = {}
            if kind == "topic":
                source = {"startingOffsets": draw.choice(["earliest", "earliest", "latest"])}
                if draw.random() < 0.5:
                    source |= {option: str(limit) for option, limit in at_most(draw.choice([1000, 15_000])).items()}
                if draw.random() < 0.3:
                    source["isolation.level"] = draw.choice(["read_committed", "read_uncommitted"])
            segment = Segment(inputs=frames, ends=ends, source=source, sink=sink)
            self.tell("stream", name, kind, segment)
            road = self.road()
            fresh = self._inputs(name, segment) if kind != "topic" else frames

            def act(
                twin: Twin, road: Road = road, segment: Segment = segment, fresh: Any = fresh, kind: str = kind
            ) -> Any:
                own: Road = road if twin is self.twins[0] else "python"
                other: Road = "python" if own == "native" else "native"
                switched = other if twin is self.twins[0] else "python"
                if kind == "topic":
                    # Both stores get the rows by one road, so that the sources are the same.
                    with on("python"):
                        for frame in fresh:
                            twin.log.write(build(frame, twin.spark, self.folder), "events")
                    switch(own)
                return twin.try_to(lambda: self._segment(twin, name, kind, segment, switched))

            ours, theirs = self.each(road, act)
            self.judge.outcomes(ours, theirs, segment)
            self.compare(segment)

    def _inputs(self, name: str, segment: Segment) -> tuple[Frame, ...]:
        """Add the frames to the folder that the query reads, one file for each."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        for frame in segment.inputs:
            made = self.folder / f"one-{frame.first}"
            build(replace(frame, tasks=1, columns=self.topics[1].columns), self._spark, self.folder).write.parquet(
                str(made)
            )
            (file,) = made.glob("*.parquet")
            file.rename(folder / f"{frame.first:09}.parquet")
            shutil.rmtree(made)
        return segment.inputs

    def _segment(self, twin: Twin, name: str, kind: str, segment: Segment, switched: Road) -> Any:
        """Run the query once; return its progress."""
        marker = twin.folder / f"{name}-fails"
        if segment.ends in ("fails", "raises"):
            marker.touch()
        checkpoint = twin.folder / f"checkpoint-{name}"
        rows = (
            self._source(twin, name, kind, segment).mapInArrow(failing(str(marker)), self._schema(twin))
            if segment.ends == "fails"
            else self._source(twin, name, kind, segment)
        )
        writer = rows.writeStream.option("checkpointLocation", str(checkpoint))
        if kind == "foreach":
            writer = writer.foreachBatch(self._foreach(twin, name, segment, marker))
        else:
            writer = writer.format("txlog").options(**segment.sink, topic="copies")
            writer = writer.option("storage.fsync", "false").option("path", twin.log.url)
        query = None
        try:
            if segment.ends == "switched":
                query = writer.start()
                query.processAllAvailable()
                switch(switched)
                query.processAllAvailable()
                query.stop()
            else:
                query = writer.trigger(availableNow=True).start()
                assert query.awaitTermination(STREAM_S), "the query does not end"
        finally:
            marker.unlink(missing_ok=True)
        if segment.ends == "forgets" and list((checkpoint / "commits").glob("[0-9]*")):
            forget_last_commit(checkpoint)
        return progress(query, str(twin.folder))

    def _schema(self, twin: Twin) -> Any:
        frame = Frame(columns=self.topics[1].columns)
        return build(frame, twin.spark, self.folder).schema

    def _source(self, twin: Twin, name: str, kind: str, segment: Segment) -> DataFrame:
        schema = self._schema(twin)
        if kind == "topic":
            reader = twin.spark.readStream.format("txlog").options(**segment.source, subscribe="events")
            rows = reader.load(twin.log.url).select(*schema.names)
        else:
            reader = twin.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
            rows = reader.parquet(str(self.folder / name))
        return rows.observe("seen", F.count(F.lit(1)).alias("n"))

    def _foreach(self, twin: Twin, name: str, segment: Segment, marker: Path) -> Callable[[DataFrame, int], None]:
        def each(batch: DataFrame, number: int) -> None:
            options: dict[str, Any] = {"transactional.id": name, "txn.version": number, **segment.sink}
            twin.log.write(batch, "copies", **options)
            if marker.exists():
                raise RuntimeError("after the write")

        return each


def failing(marker: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that fails after the first rows of a task while the file `marker` exists."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if Path(marker).exists():
                raise RuntimeError("fails on purpose")
            yield batch.slice(batch.num_rows // 2)

    return fail


def progress(query: StreamingQuery, folder: str) -> list[Any]:
    """Return what the query reports of each micro-batch that had rows."""
    made = []
    for each in query.recentProgress:
        if not each["numInputRows"]:
            continue
        source = each["sources"][0]
        seen = (each["observedMetrics"] or {}).get("seen")
        end = json.loads(source["endOffset"])
        # Each store has its own id.
        end.get("txlog:source", {}).pop("store", None)
        made.append((each["batchId"], each["numInputRows"], end, seen and seen["n"]))
    plain: list[Any] = json.loads(json.dumps(made).replace(folder, "<folder>"))
    return plain


def main(folder: str, *seeds: str) -> None:
    spark = session("txlog two roads", master="local[2,4]", config={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("OFF")
    for seed in seeds:
        life = Life(int(seed), spark, Path(folder, seed), judge := Judge())
        try:
            life.run()
            print("life", seed, "ok", dict(judge.used), flush=True)
        except BaseException as error:
            print(
                "life",
                seed,
                "FAILS",
                type(error).__name__,
                str(error)[:3000],
                *getattr(error, "__notes__", []),
                sep="\n",
                flush=True,
            )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
