"""Do the Dockerfile, the compose file and the manifests of conf/deploy call commands that exist, and do they agree?

Each command runs as written, on a store in a folder, until SIGTERM ends it. `make check-deploy` has linters for the
files, and `make test-schedulers` runs the examples for Airflow and Dagster.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import txlog
from tests.cli.support import FAST
from tests.cli.test_main import EXECUTABLE
from tests.test_install_lines import EXTRAS

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "conf" / "deploy"
DOCKERFILE, COMPOSE, KUBERNETES = (
    (DEPLOY / name).read_text(encoding="utf-8") for name in ("Dockerfile", "compose.yml", "kubernetes.yml")
)
MONITOR = (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8")
UNITS = {"k": 10, "m": 20, "g": 30, "Ki": 10, "Mi": 20, "Gi": 30}
"""Units of memory, as powers of two."""


@dataclass(frozen=True)
class Container:
    """A container that one of the files describes."""

    file: str
    role: str
    args: tuple[str, ...]
    image: str
    memory: int | None
    ports: frozenset[int]

    @property
    def port(self) -> int | None:
        """Return the port of the metrics that the command serves."""
        for option in ("--metrics-port", "--port"):
            if option in self.args:
                return int(self.args[self.args.index(option) + 1])
        return None


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) << UNITS[unit]


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return the template of the pods of a Deployment or a CronJob."""
    spec = manifest.get("spec", {})
    found: dict[str, Any] | None = spec.get("jobTemplate", {}).get("spec", spec).get("template")
    return found


def of_compose() -> list[Container]:
    return [
        Container(
            "compose.yml",
            role,
            tuple(service["command"]),
            service["image"],
            bytes_of(service["mem_limit"]),
            # HOST:PUBLISHED:PORT
            frozenset(int(each.split(":")[-1]) for each in service.get("ports", [])),
        )
        for role, service in yaml.safe_load(COMPOSE)["services"].items()
    ]


def of_kubernetes() -> list[Container]:
    return [
        Container(
            "kubernetes.yml",
            pod["metadata"]["labels"]["role"],
            tuple(each["args"]),
            each["image"],
            bytes_of(each["resources"]["limits"]["memory"]),
            frozenset(port["containerPort"] for port in each.get("ports", [])),
        )
        for pod in map(pod_of, manifests())
        if pod is not None
        for each in pod["spec"]["containers"]
    ]


def of_dockerfile() -> Container:
    (command,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    (image,) = re.findall(r"--tag (\S+)", DOCKERFILE)
    args = tuple(json.loads(command))
    return Container("Dockerfile", args[0], args, image, None, frozenset())


CONTAINERS = [of_dockerfile(), *of_compose(), *of_kubernetes()]
COMMANDS = sorted({each.args for each in CONTAINERS})


def test_the_image_has_the_version_of_the_package() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    named = {each.image for each in CONTAINERS} | set(re.findall(r"\btxlog:\d\S*", page + DOCKERFILE))
    assert named == {f"txlog:{txlog.__version__}"}


def test_the_image_copies_files_that_exist_and_an_ignore_file_lets_through() -> None:
    copied = [
        name for names in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for name in names.split()
    ]
    ignored, *through = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n", 1)[1].split()
    assert ignored == "*"
    assert sorted(f"!{name}" for name in copied) == sorted(each for each in through if each.startswith("!"))
    assert all((ROOT / name).exists() for name in copied)
    named = {extra for each in re.findall(r"EXTRAS=(\S+)", DOCKERFILE) for extra in each.split(",")}
    assert {"s3", "iceberg", "metrics"} <= named <= EXTRAS


def test_both_files_run_the_same_commands_with_the_same_memory() -> None:
    compose = {each.role: (each.args, each.memory, each.ports) for each in of_compose()}
    kubernetes = {each.role: (each.args, each.memory, each.ports) for each in of_kubernetes()}
    assert compose.keys() == {"maintain", "publish", "exporter"}
    assert kubernetes.keys() == {*compose, "fsck"}
    assert {role: kubernetes[role] for role in compose} == compose
    # docs/maintenance.md: a merge needs 2 GiB.
    assert compose["maintain"][1] == 2 << 30


def test_ports_are_open_and_those_of_the_page_on_monitoring() -> None:
    scraped = dict(re.findall(r'- "(\w+)-host:(\d+)" # txlog', MONITOR))
    assert scraped.keys() == {"exporter", "maintain"}
    for each in CONTAINERS:
        assert each.port == (int(scraped[each.role]) if each.role in scraped else None), each
        if each.file != "Dockerfile":
            assert each.ports == ({each.port} if each.port else set()), each
    for pod in filter(None, map(pod_of, manifests())):
        asked = pod["metadata"].get("annotations", {}).get("prometheus.io/port")
        assert asked == scraped.get(pod["metadata"]["labels"]["role"])


def test_the_user_is_the_image_s_and_not_root() -> None:
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert f"--uid {user} " in DOCKERFILE
    for pod in filter(None, map(pod_of, manifests())):
        assert pod["spec"]["securityContext"]["runAsUser"] == int(user)
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_the_manifests_name_each_other() -> None:
    (settings,) = (each for each in manifests() if each["kind"] == "ConfigMap")
    assert settings["data"].keys() == {"TXLOG_STORE", "AWS_DEFAULT_REGION"}
    assert yaml.safe_load(COMPOSE)["x-txlog"]["environment"].keys() >= settings["data"].keys()
    for each in manifests():
        pod = pod_of(each)
        if pod is None:
            continue
        labels = {"app": "txlog", "role": each["metadata"]["name"].removeprefix("txlog-")}
        assert each["metadata"]["labels"] == pod["metadata"]["labels"] == labels
        assert each["spec"].get("selector", {"matchLabels": labels}) == {"matchLabels": labels}
        (container,) = pod["spec"]["containers"]
        assert container["name"] == labels["role"]
        assert container["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
        assert [mount["name"] for mount in container["volumeMounts"]] == [
            volume["name"] for volume in pod["spec"]["volumes"]
        ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_each_command_works_until_a_signal_ends_it(args: tuple[str, ...], tmp_path: Path) -> None:
    store_url = str(tmp_path / "log")
    with txlog.open(store_url, storage_options=FAST) as store:
        store.create_topic("orders", {"order_id": "int64"}, config={"publish.formats": "delta"})
        with store.producer() as producer:
            producer.send("orders", [{"order_id": 1}])
    # Any free port: the tests of two checkouts may run at once.
    command = [re.sub(r"^9\d{3}$", "0", each) for each in args]
    environment = {**os.environ, "TXLOG_STORE": store_url}
    with subprocess.Popen(
        [str(EXECUTABLE), *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as program:
        try:
            assert program.stdout is not None
            if args[0] != "fsck":
                # `publish` reports its first publication. The others serve metrics.
                sign = r"orders: publication 0, " if args[0] == "publish" else r"^Metrics at (\S+)$"
                found = next(filter(None, (re.search(sign, line) for line in program.stdout)), None)
                assert found is not None, "it ended, or printed no sign of life"
                if args[0] != "publish":
                    with urllib.request.urlopen(found[1].replace("0.0.0.0", "127.0.0.1"), timeout=60) as answer:
                        assert b"\ntxlog_" in answer.read()
                program.send_signal(signal.SIGTERM)
            printed, _ = program.communicate(timeout=60)
        finally:
            program.kill()
    assert program.returncode == 0, printed
    assert "Traceback" not in printed
