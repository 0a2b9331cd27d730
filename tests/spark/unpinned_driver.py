"""A program whose Python threads have no Java threads of their own: streams commit, and no version loses its query.

`PYSPARK_PIN_THREAD=false python unpinned_driver.py <url> <folder>` prints a line of JSON for each step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from pyspark_txlog import TxLog, install, session, uninstall


def main(url: str, folder: str) -> None:
    spark = session("txlog unpinned", master="local[2]", config={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("OFF")
    spark.range(5).selectExpr("id AS order_id").write.json(f"{folder}/in")
    log = TxLog(spark, url)
    table = log.table("orders")

    def files() -> DataFrame:
        return spark.readStream.schema("order_id long").json(f"{folder}/in")

    def stream(name: str, **options: str) -> Any:
        writer = files().writeStream.format("txlog").option("topic", "orders").option("transactional.id", name)
        return writer.options(**options, checkpointLocation=f"{folder}/{name}").trigger(availableNow=True).start(url)

    def appended(name: str, **options: Any) -> Any:
        once = {"availableNow": True}
        return table.append_stream(
            files(), transactional_id=name, checkpoint_location=f"{folder}/{name}", trigger=once, **options
        )

    def in_foreach_batch(name: str, **scope: str) -> Any:
        def each(batch: DataFrame, number: int) -> None:
            table.append(batch, transactional_id=name, version=number, **scope)  # type: ignore[arg-type]

        writer = files().writeStream.foreachBatch(each).option("checkpointLocation", f"{folder}/{name}")
        return writer.trigger(availableNow=True).start()

    def tell(name: str, start: Callable[[], Any]) -> None:
        before = table.to_df().count()
        error = ""
        try:
            start().awaitTermination()
        except Exception as found:
            error = str(found)
        print(json.dumps({"step": name, "rows": table.to_df().count() - before, "error": error}), flush=True)

    for road, switch in (("python", uninstall), ("native", install)):
        switch()
        tell(road, lambda road=road: stream(road))  # type: ignore[misc]
        tell(f"{road}, no offsets", lambda road=road: stream(f"{road}-2", commitSourceOffsets="false"))  # type: ignore[misc]
    tell("append_stream", lambda: appended("appended"))
    tell("append_stream, no offsets", lambda: appended("appended-2", commit_source_offsets=False))
    tell("foreachBatch", lambda: in_foreach_batch("each"))
    tell("foreachBatch, scope", lambda: in_foreach_batch("each-2", scope="its id"))
    log.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
