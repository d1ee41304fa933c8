"""Snapshots: a sandbox's files frozen at any moment, kept by content, restored elsewhere, forked.

Frozen is what commands changed in the file systems, and the spec (image, environment, working directory)
with which it began. Processes and open connections are not: a snapshot is taken between commands.
"""

from orchard_core.env.snapshots.fork import fork
from orchard_core.env.snapshots.manifest import Entry, Manifest, SnapshotMismatchError
from orchard_core.env.snapshots.store import SnapshotStore, UnknownSnapshotError

__all__ = ["Entry", "Manifest", "SnapshotMismatchError", "SnapshotStore", "UnknownSnapshotError", "fork"]
