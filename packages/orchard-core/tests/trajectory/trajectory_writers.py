"""What other processes do to a store in tests (importable by name, so that they can be spawned)."""

from __future__ import annotations

import resource
import signal

import numpy as np
from trajectory_fakes import two_turns

from orchard_core.trajectory import StoreError, TrajectoryStore


def write_many(folder, writer, barrier):
    store = TrajectoryStore(folder)
    barrier.wait(30)
    for number in range(20):
        store.append([two_turns(f"shared-{number}", task_id=str(writer)), two_turns(f"{writer}-{number}")])


def write_to_a_full_disk(folder, answers):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = TrajectoryStore(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    noise = np.random.default_rng(0).bytes(200_000)
    try:
        store.append([two_turns("a", result={"noise": noise})])
        answers.put("stored")
    except StoreError as error:
        answers.put(str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answers.put(store.append([two_turns("b")]))
