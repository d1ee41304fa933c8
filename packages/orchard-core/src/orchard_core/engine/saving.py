"""Writing model folders: a full or forbidden disk is said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from orchard_core.errors import InfrastructureError


class SaveError(InfrastructureError):
    """Weights could not be written."""


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turn what fails while `folder` is written into a SaveError."""
    try:
        yield
    except SafetensorError as error:
        reason = str(error).rpartition("I/O error: ")[2]
        raise SaveError(f"{folder} can't be written: {reason}") from error
    except OSError as error:
        raise SaveError(f"{folder} can't be written: {error.strerror or error}") from error
