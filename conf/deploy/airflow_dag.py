"""Maintenance, checks and an exactly-once daily load of a txlog store with Airflow 3.

Copy this file to your folder of DAGs. Install txlog in the environment of the workers, and set TXLOG_STORE there.
"""

from __future__ import annotations

import csv
import datetime
import os

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import CronDataIntervalTimetable, dag, task

import txlog

COLUMNS = {"day": "date32", "customer": "string", "amount": "float64"}
START = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
RETRY = {"retries": 3, "retry_delay": datetime.timedelta(minutes=5)}


@dag(schedule="7 * * * *", start_date=START, max_active_runs=1, default_args=RETRY)
def txlog_maintain() -> None:
    BashOperator(task_id="maintain", bash_command="txlog maintain --once")


# A retry would find the same damage. Status 4 means damage, so send an alarm if this task fails.
@dag(schedule="30 3 * * 0", start_date=START, max_active_runs=1)
def txlog_fsck() -> None:
    BashOperator(task_id="fsck", bash_command="txlog fsck")


# With catchup=True Airflow also loads the days on which it was down.
@dag(schedule=CronDataIntervalTimetable("0 0 * * *", "UTC"), start_date=START, catchup=True, default_args=RETRY)
def txlog_daily_load() -> None:
    @task
    def load_day(data_interval_start: datetime.datetime | None = None) -> int:
        """Write the rows of one day in one transaction, and return how many are new."""
        assert data_interval_start is not None
        day = data_interval_start.date()
        rows = read_day(day)
        with txlog.open(os.environ["TXLOG_STORE"]) as store:
            store.create_topic("sales", COLUMNS, if_not_exists=True)
            # Each day has its own name, and each version of a day is written once.
            with store.producer(f"daily-{day}") as producer, producer.transaction(version=1) as transaction:
                producer.send("sales", rows)
        # After a crash, or if a user clears the task, Airflow runs it again. Then txlog skips the rows.
        return 0 if transaction.result.skipped else len(rows)

    load_day()


def read_day(day: datetime.date) -> list[dict[str, object]]:
    """Return the rows of a day. Replace this by your own source."""
    with open(f"{os.environ['SALES_FOLDER']}/{day}.csv", newline="") as file:
        return [
            {"day": day, "customer": row["customer"], "amount": float(row["amount"])} for row in csv.DictReader(file)
        ]


txlog_maintain()
txlog_fsck()
txlog_daily_load()
