"""tools/images: archives that are the same for the same input, and images that keep what they say."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from cluster.images import BUSYBOX
from cluster.oci import ImageConfig, write_archive, write_layer
from engines import tool

BUSYBOX_NAME, BASE_NAME, SANDBOXD_NAME = (
    f"orchard.local/{name}:dev" for name in ("busybox", "base", "sandboxd")
)


def make(folder: Path) -> bytes:
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/tool").write_text("#!/bin/sh\n")
    (tree / "bin/tool").chmod(0o755)
    (tree / "bin/link").symlink_to("tool")
    os.utime(tree / "bin/tool", (1, 1))
    write_layer(folder / "layer.tar", tree)
    write_archive(folder / "image.tar", "example.local/a/b:1", folder / "layer.tar", ImageConfig(user="7"))
    return (folder / "image.tar").read_bytes()


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    assert make(tmp_path / "one") == make(tmp_path / "two")


def test_an_archive_is_both_an_oci_layout_and_a_docker_archive(tmp_path: Path) -> None:
    make(tmp_path)
    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        index = json.load(files["index.json"] or pytest.fail("no index"))
        docker = json.load(files["manifest.json"] or pytest.fail("no manifest"))
    names = index["manifests"][0]["annotations"]
    assert names["io.containerd.image.name"] == "example.local/a/b:1"
    assert docker[0]["RepoTags"] == ["example.local/a/b:1"]
    assert {docker[0]["Config"], *docker[0]["Layers"]} <= set(files)


def test_an_image_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    first = BUSYBOX.archive()
    before = first.stat().st_mtime_ns
    assert BUSYBOX.archive() == first
    assert first.stat().st_mtime_ns == before


def in_container(image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    return tool("devcluster", "podman", "run", "--rm", "--network=none", *options, image, *command)


def test_what_an_image_says_about_itself_holds(docker_host: str) -> None:
    assert in_container(BUSYBOX_NAME, "sh", "-c", "pwd; id -u; echo $GREETING").split() == [
        "/srv",
        "1234",
        "hello",
    ]


def test_the_base_image_has_python_and_git(docker_host: str) -> None:
    versions = in_container(BASE_NAME, "sh", "-c", "python3 --version; git --version")
    assert "Python 3" in versions
    assert "git version" in versions


def test_sandboxds_interpreter_runs_in_an_image_without_python_or_glibc(
    docker_host: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    tool("devcluster", "podman", "run", "--rm", f"--volume={tmp_path}:/target", SANDBOXD_NAME)
    root = "/orchard-runtime"
    start = [f"{root}/lib/ld.so", "--library-path", f"{root}/lib", f"{root}/bin/python3", "-I", "-S", "-c"]
    code = f"import sys; sys.path[:] = ['{root}/python']; import json, os; print(json.dumps(os.getuid()))"
    volume = (f"--volume={tmp_path}:{root}:ro",)
    assert in_container(BUSYBOX_NAME, *start, code, options=volume) == "1234"
