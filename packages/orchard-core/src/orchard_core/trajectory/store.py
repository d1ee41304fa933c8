"""The trajectory store: two Delta Lake tables, safe with several writers, readable by any Delta reader.

Calls are written first and trajectories second: a row of `trajectories` is the commit point, and names the write
(`batch`) whose rows of `calls` are its own, so that what an interrupted write left behind is never read.
A trajectory's id is also a Delta transaction id, so that of two writers of one id only one can commit.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from orchard_core.errors import MissingExtraError
from orchard_core.trajectory.codec import (
    CALL_COLUMNS,
    NULLABLE,
    TRAJECTORY_COLUMNS,
    Kind,
    Row,
    call_rows,
    trajectory_from_rows,
    trajectory_row,
)
from orchard_core.trajectory.errors import StoreError
from orchard_core.trajectory.types import Trajectory

try:
    import arro3.core as arrow
    import deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError
except ImportError as error:
    raise MissingExtraError("deltalake", "store") from error

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_WRITER = deltalake.WriterProperties(compression="ZSTD", compression_level=3)
_ATTEMPTS = 30
_IDS_A_QUERY = 500
_APPENDS_A_MERGE = 32
"""A commit's cost grows with the number of files (0.1 ms each), so that many small ones are merged as we go."""
_MERGED_BYTES = 16 * 2**20
_CONFIGURATION = {
    "delta.checkpointInterval": "50",
    # How long a reader may hold on to a state of the table before compaction's clean-up may hurt it.
    "delta.deletedFileRetentionDuration": "interval 6 hours",
}


class TrajectoryStore:
    """Trajectories under a folder: `PATH/trajectories` and `PATH/calls`, made if absent.

    Methods block for milliseconds (call them through `asyncio.to_thread` from a busy loop), may be called from
    several threads, and raise StoreError. Several processes may write to one store.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._appends = 0
        self._trajectories = self._open("trajectories", TRAJECTORY_COLUMNS)
        self._calls = self._open("calls", CALL_COLUMNS)

    def append(self, trajectories: Sequence[Trajectory]) -> int:
        """Add all of them in one commit and return how many were new: ids that are stored already stay as they are."""
        fresh = list({trajectory.id: trajectory for trajectory in reversed(trajectories)}.values())[::-1]
        batch = uuid.uuid4().hex
        calls_written = False
        with self._lock:
            for attempt in range(_ATTEMPTS):
                self._do("read", self._trajectories.update_incremental)
                fresh = [one for one in fresh if self._trajectories.transaction_version(one.id) is None]
                if not fresh:
                    return 0
                try:
                    if not calls_written:
                        rows = [row for one in fresh for row in call_rows(one, batch)]
                        self._write(self._calls, CALL_COLUMNS, rows, [])
                        calls_written = True
                    rows = [trajectory_row(one, batch) for one in fresh]
                    self._write(self._trajectories, TRAJECTORY_COLUMNS, rows, [one.id for one in fresh])
                    self._merge_when_due()
                    return len(fresh)
                except CommitFailedError:
                    time.sleep(random.uniform(0, 0.01 * (attempt + 1)))
        raise StoreError(f"other writers kept the trajectory store at {self.path} busy; try again")

    def query(
        self,
        *,
        run: str | None = None,
        stage: str | None = None,
        task_id: str | None = None,
        ids: Iterable[str] | None = None,
    ) -> list[Trajectory]:
        """The trajectories that match all given filters, oldest first (by start, then id)."""
        if ids is None:
            rows = self._select(self._trajectories, "*", _where(run=run, stage=stage, task_id=task_id))
        else:
            wanted = sorted(set(ids))
            rows = []
            for some in _chunks(wanted):
                where = _where(run=run, stage=stage, task_id=task_id, id=some)
                rows += self._select(self._trajectories, "*", where)
        calls: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for some in _chunks([row["id"] for row in rows]):
            for call in self._select(self._calls, "*", _where(trajectory_id=some)):
                calls[call["trajectory_id"], call["batch"]].append(call)
        rows.sort(key=lambda row: (row["started_at"], row["id"]))
        return [self._restore(row, calls[row["id"], row["batch"]]) for row in rows]

    def ids(self, run: str | None = None, stage: str | None = None) -> set[str]:
        """The ids of a run and stage, read without their calls."""
        return {row["id"] for row in self._select(self._trajectories, "id", _where(run=run, stage=stage))}

    def compact(self) -> None:
        """Merge small files whole, and delete what no reader can still be using. Worth it at the end of a run."""
        with self._lock:
            self._merge(target_size=None)
            for table in (self._trajectories, self._calls):
                self._do("written", partial(table.vacuum, dry_run=False))

    def _merge_when_due(self) -> None:
        self._appends += 1
        if self._appends % _APPENDS_A_MERGE:
            return
        try:
            self._merge(target_size=_MERGED_BYTES)
        except StoreError as error:
            # What was appended is safe; only its tidying failed.
            _log.warning("small files were not merged: %s", error)

    def _merge(self, target_size: int | None) -> None:
        for table in (self._trajectories, self._calls):
            self._do("written", table.update_incremental)
            # Two writers may merge at once: one of them loses, and nothing is lost.
            with contextlib.suppress(CommitFailedError):
                self._do(
                    "written",
                    partial(table.optimize.compact, target_size=target_size, writer_properties=_WRITER),
                )

    def _restore(self, row: Row, calls: list[Row]) -> Trajectory:
        if len(calls) != row["call_count"]:
            raise StoreError(
                f"the trajectory store at {self.path} is damaged: trajectory {row['id']} should have "
                f"{row['call_count']} calls and has {len(calls)}; restore the folder from a copy"
            )
        return trajectory_from_rows(row, calls)

    def _open(self, name: str, columns: dict[str, Kind]) -> deltalake.DeltaTable:
        folder = str(self.path / name)

        def open_or_create() -> deltalake.DeltaTable:
            for attempt in range(_ATTEMPTS):
                if deltalake.DeltaTable.is_deltatable(folder):
                    return deltalake.DeltaTable(folder)
                try:
                    return deltalake.DeltaTable.create(
                        folder, _schema(columns), mode="ignore", configuration=_CONFIGURATION
                    )
                except CommitFailedError:
                    time.sleep(0.005 * (attempt + 1))
            raise StoreError(f"other writers kept the trajectory store at {self.path} busy; try again")

        return self._do("opened", open_or_create)

    def _write(
        self, table: deltalake.DeltaTable, columns: dict[str, Kind], rows: list[Row], transactions: list[str]
    ) -> None:
        if not rows:
            return
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(app_id, 1) for app_id in transactions]
        )

        def write() -> None:
            deltalake.write_deltalake(
                table,
                _batch(columns, rows),
                mode="append",
                writer_properties=_WRITER,
                commit_properties=properties,
            )

        self._do("written", write)

    def _select(self, table: deltalake.DeltaTable, columns: str, where: str) -> list[Row]:
        def select() -> list[Row]:
            table.update_incremental()
            builder = deltalake.QueryBuilder().register("t", table)
            found = builder.execute(f"select {columns} from t{where}").read_all()
            names = found.schema.names
            return [
                dict(zip(names, row, strict=True))
                for row in zip(*(found[name].to_pylist() for name in names), strict=True)
            ]

        with self._lock:
            return self._do("read", select)

    def _do(self, what: str, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except CommitFailedError:
            raise
        except (DeltaError, OSError, OverflowError) as error:
            raise StoreError(self._explain(what, str(error))) from error
        except Exception as error:
            if type(error) is not Exception:
                raise
            # The query engine raises bare Exceptions for whatever goes wrong while it reads.
            raise StoreError(self._explain(what, str(error))) from error

    def _explain(self, what: str, detail: str) -> str:
        if "No space left" in detail or "StorageFull" in detail:
            return f"the disk with the trajectory store at {self.path} is full; free some space and run again"
        reason = " ".join(detail.split())
        return f"the trajectory store at {self.path} can't be {what}; check that the folder is sound and writable ({reason})"


def _arrow_type(kind: Kind) -> Any:
    types = {
        "text": arrow.DataType.utf8,
        "bytes": arrow.DataType.binary,
        "int32": arrow.DataType.int32,
        "int64": arrow.DataType.int64,
        "float64": arrow.DataType.float64,
    }
    return types[kind]()


def _schema(columns: dict[str, Kind]) -> Any:
    return arrow.Schema(
        [arrow.Field(name, _arrow_type(kind), nullable=name in NULLABLE) for name, kind in columns.items()]
    )


def _batch(columns: dict[str, Kind], rows: list[Row]) -> Any:
    arrays = [arrow.Array([row[name] for row in rows], _arrow_type(kind)) for name, kind in columns.items()]
    return arrow.RecordBatch.from_arrays(arrays, schema=_schema(columns))


def _where(**filters: str | Sequence[str] | None) -> str:
    tests = []
    for column, wanted in filters.items():
        if isinstance(wanted, str):
            tests.append(f"{column} = {_quoted(wanted)}")
        elif wanted is not None:
            tests.append(f"{column} in ({', '.join(_quoted(one) for one in wanted)})")
    return f" where {' and '.join(tests)}" if tests else ""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _chunks(values: Sequence[str]) -> list[Sequence[str]]:
    return [values[at : at + _IDS_A_QUERY] for at in range(0, len(values), _IDS_A_QUERY)]
