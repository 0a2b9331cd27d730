"""Runs the DAGs of conf/deploy/airflow_dag.py with `dag.test()`, without a server, and prints the states of the runs.

The folder of DAGs and the store are in the environment. The first try of each day fails after its commit.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import sys
from typing import Any

from tests.schedulers.dying import first_try_dies

NAMES = ("txlog_daily_load", "txlog_maintain", "txlog_fsck")


def dags() -> dict[str, Any]:
    path = os.path.join(os.environ["AIRFLOW__CORE__DAGS_FOLDER"], "airflow_dag.py")
    spec = importlib.util.spec_from_file_location("airflow_dag", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, name)() for name in NAMES}


def main(days: list[str]) -> None:
    made = dags()
    load = made.pop("txlog_daily_load")
    load.get_task("load_day").retry_delay = datetime.timedelta(0)
    states = []
    for day in days:
        # A run belongs to the midnight that ends its day.
        midnight = datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00") + datetime.timedelta(days=1)
        with first_try_dies() as tries:
            states += [f"{day} {load.test(logical_date=midnight).state}, try {tries.count}"]
    states += [f"{name} {dag.test().state}" for name, dag in made.items()]
    print(json.dumps(states))


if __name__ == "__main__":
    main(sys.argv[1:])
