"""Fixtures of real engines: a Kubernetes (tools/devcluster) and a Docker-compatible one (podman).

Each is brought up when the first test asks for it and shared by all workers of a run, which hold it
together through the run's own process; it goes down when that process ends its session, unless somebody
else holds it too (`tools/devcluster status` says who). `make test` builds binaries and images beforehand;
bringing both engines up takes less than a minute then, which counts into the first test that asks.

A test that needs one is skipped only where there is no root or a package is missing, and there only
outside CI: with CI set in the environment it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from cluster.build import is_built
from cluster.choice import cluster_of
from cluster.own import PROGRAMS, OwnCluster, check_programs
from cluster.paths import ClusterError, Instance
from cluster.podman import PODMAN_PROGRAMS

ROOT = Path(__file__).resolve().parent.parent


def run_pid() -> int:
    """The process that a whole pytest run is: xdist's controller, or this process."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def tool(name: str, *arguments: str, check: bool = True) -> str:
    """Standard output of tools/NAME; a failure shows its words."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / name), *arguments], capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        pytest.fail(f"tools/{name} {' '.join(arguments)}: {done.stderr.strip()}", pytrace=False)
    return done.stdout.strip()


def needs_kubernetes() -> None:
    """Skip, or in CI fail, the test that asks where no cluster can be had."""
    if not isinstance(cluster_of(Instance.named()), OwnCluster):
        return
    _skip_unless_here(PROGRAMS)
    if not is_built():
        _give_up("Kubernetes is not built yet; run `make engines`")


def needs_docker() -> None:
    """The same for a Docker-compatible engine."""
    _skip_unless_here(PODMAN_PROGRAMS)


def _skip_unless_here(programs: list[str]) -> None:
    try:
        check_programs(programs)
    except ClusterError as error:
        _give_up(str(error))


def _give_up(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """A kubeconfig for an administrator of a real cluster whose node has all images of tools/images."""
    needs_kubernetes()
    path = tool("devcluster", "up", f"--for={run_pid()}").splitlines()[-1]
    tool("images", "load")
    return Path(path)


@pytest.fixture(scope="session")
def docker_host() -> str:
    """The address (for DOCKER_HOST) of a Docker-compatible engine that has all images of tools/images."""
    needs_docker()
    address = tool("devcluster", "podman-up", f"--for={run_pid()}").splitlines()[-1]
    tool("images", "load")
    return address


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let go of what this run brought up."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        tool("devcluster", "down", f"--for={run_pid()}", check=False)
