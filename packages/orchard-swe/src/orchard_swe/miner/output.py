"""Reads and writes a list of instances: packages.json and instances.jsonl in one folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from orchard_swe.instances import Instance, read_list, to_json
from orchard_swe.packages import to_json as package_to_json


def read_folder(folder: Path) -> list[Instance]:
    """The instances of a folder; none when it holds no list yet."""
    packages, instances = folder / "packages.json", folder / "instances.jsonl"
    if not packages.is_file() or not instances.is_file():
        return []
    return read_list(packages.read_text(), instances.read_text())


def write_list(folder: Path, instances: Sequence[Instance]) -> None:
    """Write the list, sorted by id; of two instances with one id the later stays."""
    by_id = {instance.id: instance for instance in instances}
    packages = {instance.package.key: instance.package for instance in by_id.values()}
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.dumps(package_to_json(packages[key]), separators=(",", ":")) for key in sorted(packages)]
    (folder / "packages.json").write_text("[\n" + ",\n".join(records) + "\n]\n")
    rows = [json.dumps(to_json(by_id[key]), separators=(",", ":")) for key in sorted(by_id)]
    (folder / "instances.jsonl").write_text("\n".join(rows) + "\n")
