"""tools/simnode: the API server sees a node whose pods start, end and go as on any other."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api, ApiError
from engines import ROOT
from orchard_core.env.dial import Credentials, TcpAddress, dial

NAMESPACE = f"simnode-{secrets.token_hex(3)}"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@contextlib.contextmanager
def simulated_node(kubeconfig: Path) -> Iterator[str]:
    name = f"simulated-{secrets.token_hex(3)}"
    command = [sys.executable, str(ROOT / "tools/simnode"), "--kubeconfig", str(kubeconfig), "--name", name]
    with subprocess.Popen([*command, "--network=65"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield name
        process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def node(kubeconfig: Path) -> Iterator[str]:
    with simulated_node(kubeconfig) as name:
        yield name


@pytest.fixture(scope="module")
def api(kubeconfig: Path, node: str) -> Iterator[Api]:
    api = Api(kubeconfig)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    api.call("POST", "/api/v1/namespaces", body)
    until(lambda: api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"])
    yield api
    api.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")  # it goes when its last pod has


def until(condition: Any, seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
    return value


def gone(api: Api, path: str) -> bool:
    try:
        api.call("GET", path)
    except ApiError as error:
        return error.status == 404
    return False


def create(api: Api, name: str, key: bytes, **spec: Any) -> str:
    """Create a sandbox's pod for a simulated node; its uid."""
    env = {
        "ORCHARD_LISTEN": "tcp:0.0.0.0:7070",
        "ORCHARD_SANDBOX_ID": name,
        "ORCHARD_SANDBOX_KEY": key.hex(),
        "ORCHARD_TTL_S": "600",
        "ORCHARD_GRACE_S": "1",
    }
    listed: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in env.items()]
    identity = {"fieldRef": {"fieldPath": "metadata.uid"}}
    listed.append({"name": "ORCHARD_SANDBOX_IDENTITY", "valueFrom": identity})
    container = {"name": "main", "image": "any", "env": listed}
    fixed = {
        "nodeSelector": {"orchard.dev/simulated": "true"},
        "tolerations": [{"key": "orchard.dev/simulated", "operator": "Exists"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }
    pod = {"metadata": {"name": name}, "spec": {"containers": [container], **fixed, **spec}}
    return str(api.call("POST", PODS, {"apiVersion": "v1", "kind": "Pod", **pod})["metadata"]["uid"])


def status(api: Api, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.call("GET", f"{PODS}/{name}")["status"]
    return found


def is_ready(api: Api, name: str) -> bool:
    conditions = status(api, name).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def test_a_pod_becomes_ready_at_an_address_where_its_own_sandboxd_answers(api: Api) -> None:
    key = secrets.token_bytes(32)
    uid = create(api, "answers", key)
    await asyncio.to_thread(until, lambda: is_ready(api, "answers"))
    address = status(api, "answers")["podIP"]
    assert address.startswith("127.65.")
    connection = await dial(TcpAddress(address, 7070), Credentials(key, uid), lambda _stream, _request: None)
    connection.shut("the test is over")


def test_each_pod_has_an_address_of_its_own(api: Api) -> None:
    for number in range(20):
        create(api, f"many-{number}", secrets.token_bytes(32))
    names = [f"many-{number}" for number in range(20)]
    until(lambda: all(is_ready(api, name) for name in names))
    assert len({status(api, name)["podIP"] for name in names}) == 20


def test_a_deleted_pod_and_its_processes_are_gone(api: Api) -> None:
    create(api, "deleted", secrets.token_bytes(32))
    until(lambda: is_ready(api, "deleted"))
    address = status(api, "deleted")["podIP"]
    api.call("DELETE", f"{PODS}/deleted")
    until(lambda: gone(api, f"{PODS}/deleted"))
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True).stdout
    assert address not in listening


def test_a_pod_past_its_deadline_has_failed_and_says_why(api: Api) -> None:
    create(api, "late", secrets.token_bytes(32), activeDeadlineSeconds=1)
    until(lambda: status(api, "late")["phase"] == "Failed")
    assert status(api, "late")["reason"] == "DeadlineExceeded"


def test_a_key_that_is_no_key_makes_a_pod_that_failed_and_not_one_that_hangs(api: Api) -> None:
    create(api, "broken", b"short")
    until(lambda: status(api, "broken")["phase"] == "Failed")
    assert status(api, "broken")["containerStatuses"][0]["state"]["terminated"]["exitCode"] != 0


def test_the_node_is_there_until_it_is_stopped(kubeconfig: Path) -> None:
    api = Api(kubeconfig)
    with simulated_node(kubeconfig) as name:
        assert not gone(api, f"/api/v1/nodes/{name}")
    assert gone(api, f"/api/v1/nodes/{name}")
