"""A program whose Python threads have no Java threads of their own: streams commit, and no version loses its query.

`PYSPARK_PIN_THREAD=false python unpinned_driver.py <url> <folder> <road>...` prints a line of JSON for each step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from pyspark_txlog import TxLog, install, session, uninstall


def main(url: str, folder: str, *roads: str) -> None:
    spark = session("txlog unpinned", master="local[2]", config={"spark.ui.enabled": False})
    spark.sparkContext.setLogLevel("OFF")
    spark.range(5).selectExpr("id AS order_id").write.json(f"{folder}/in")
    log = TxLog(spark, url)

    def rows() -> int:
        return log.to_dfs("orders")["orders"].count()

    def files() -> DataFrame:
        return spark.readStream.schema("order_id long").json(f"{folder}/in")

    def stream(name: str, **options: str) -> Any:
        writer = files().writeStream.format("txlog").option("topic", "orders").option("transactional.id", name)
        return writer.options(**options, checkpointLocation=f"{folder}/{name}").trigger(availableNow=True).start(url)

    def in_foreach_batch(name: str, scope: str | None = None) -> Any:
        def each(batch: DataFrame, number: int) -> None:
            with log.transaction(name, number, scope=scope) as txn:
                txn.write(batch, "orders")

        writer = files().writeStream.foreachBatch(each).option("checkpointLocation", f"{folder}/{name}")
        return writer.trigger(availableNow=True).start()

    def tell(name: str, start: Callable[[], Any]) -> None:
        before = rows()
        error = ""
        try:
            start().awaitTermination()
        except Exception as found:
            error = str(found)
        print(json.dumps({"step": name, "rows": rows() - before, "error": error}), flush=True)

    for road in roads:
        (install if road == "native" else uninstall)()
        tell(road, lambda road=road: stream(road))  # type: ignore[misc]
        tell(f"{road}, no offsets", lambda road=road: stream(f"{road}-2", commitSourceOffsets="false"))  # type: ignore[misc]
    tell("foreachBatch", lambda: in_foreach_batch("each"))
    tell("foreachBatch, scope", lambda: in_foreach_batch("each-2", scope="its id"))
    log.close()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
