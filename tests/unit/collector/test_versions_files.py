"""What is read of a node's files for its versions: within its root, within bounds, and by the rules of each form."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.versions.files import Node
from tocsin.collector.versions.libraries import cuda_of_json, cuda_toolkit, library, of_header
from tocsin.collector.versions.packages import DPKG_STATUS, RPM_DATABASES, header_texts, installed, upstream

DATA = Path(__file__).parents[2] / "data" / "versions"


def put(root: Path, name: str, content: str | bytes = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def link(root: Path, name: str, target: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


# ---------------------------------------------------------------------- files


def test_links_are_followed_as_the_node_would(tmp_path: Path) -> None:
    root = tmp_path / "node"
    put(root, "usr/local/cuda-12.4/version.json", "of the node")
    link(root, "etc/alternatives/cuda", "/usr/local/cuda-12.4")
    link(root, "usr/local/cuda", "../../etc/alternatives/cuda")
    assert Node(root).text("usr/local/cuda/version.json") == "of the node"


def test_no_way_leads_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "node"
    put(tmp_path, "secret", "outside")
    put(root, "a/b")
    for name, target in (("up", "../../../secret"), ("absolute", str(tmp_path / "secret"))):
        link(root, name, target)
        assert Node(root).text(name) is None
    assert Node(root).text("../secret") is None


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    link(tmp_path, "one", "two")
    link(tmp_path, "two", "/one")
    assert Node(tmp_path).place("one") is None
    assert Node(tmp_path).text("one") is None
    assert Node(tmp_path).names("one") == []


def test_a_pipe_in_the_place_of_a_file_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "status")
    assert Node(tmp_path).text("status") is None
    assert list(Node(tmp_path).lines("status", 100)) == []
    assert Node(tmp_path).text(".") is None


@given(st.binary(max_size=300), st.integers(1, 200))
def test_lines_are_those_of_the_file_up_to_the_bound(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, most: int
) -> None:
    root = tmp_path_factory.getbasetemp()
    put(root, "lines", content)
    text = content[:most].decode("utf-8", errors="replace")
    lines = list(Node(root).lines("lines", most))
    assert [line for line in lines if line] == [line for line in text.split("\n") if line]


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    put(tmp_path, "long", b"x" * 1_000_000 + b"\nPackage: a\n")
    first, second = Node(tmp_path).lines("long", 10_000_000)
    assert len(first) < 100_000
    assert second == "Package: a"


# ---------------------------------------------------------------------- packages

STATUS = """Package: nvidia-fabricmanager-550
Status: install ok installed
Architecture: amd64
Version: 550.163.01-1
Description: manages the NVSwitches
 Package: nothing
 Version: 1

Package: nvidia-fabricmanager-535
Status: deinstall ok config-files
Version: 535.1-1

Package: libnccl2
Status: install ok installed
Version: 2.21.5-1+cuda12.4

Package: nvidia-container-toolkit
Status: hold ok installed
Version: 1:1.17.8-1
"""


def test_installed_packages_of_dpkg_count(tmp_path: Path) -> None:
    put(tmp_path, DPKG_STATUS, STATUS)
    found, known = installed(Node(tmp_path))
    assert known
    assert found == {"fabric_manager": "550.163.01", "nccl": "2.21.5", "container_toolkit": "1.17.8"}


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1:550.163.01-0ubuntu1", "550.163.01"), ("2.21.5-1+cuda12.4", "2.21.5"), ("1.17.8", "1.17.8"), ("", "")],
)
def test_a_version_without_epoch_and_revision(version: str, expected: str) -> None:
    assert upstream(version) == expected


@given(st.text(max_size=400) | st.lists(st.sampled_from(STATUS.splitlines()), max_size=20).map("\n".join))
def test_whatever_dpkg_holds_nothing_is_raised(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.getbasetemp()
    put(root, DPKG_STATUS, text.encode("utf-8", errors="replace"))
    found, _ = installed(Node(root))
    assert all(found.values())


def header(texts: dict[int, str], kind: int = 6) -> bytes:
    """A header as rpm keeps it: the index, then the store."""
    store, index = b"", b""
    for tag, text in texts.items():
        index += struct.pack(">IiiI", tag, kind, len(store), 1)
        store += text.encode() + b"\0"
    return struct.pack(">II", len(texts), len(store)) + index + store


def rpm_database(root: Path, blobs: list[object], name: str = RPM_DATABASES[0]) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
        db.executemany("INSERT INTO Packages (blob) VALUES (?)", [(blob,) for blob in blobs])


def test_installed_packages_of_rpm_count(tmp_path: Path) -> None:
    rpm_database(
        tmp_path,
        [
            header({1000: "bash", 1001: "5.2"}),
            header({100: "x", 1000: "nvidia-fabric-manager", 1001: "550.163.01", 1002: "1"}),
            header({1000: "libnccl", 1001: "2.21.5"}),
            b"no header",
            "text",
        ],
    )
    assert installed(Node(tmp_path)) == ({"fabric_manager": "550.163.01", "nccl": "2.21.5"}, True)


def test_a_database_that_rpm_made_is_read(tmp_path: Path) -> None:
    put(tmp_path, RPM_DATABASES[1], gzip.decompress((DATA / "rpmdb.sqlite.gz").read_bytes()))
    expected = {"fabric_manager": "550.163.01", "container_toolkit": "1.17.8", "nccl": "2.21.5"}
    assert installed(Node(tmp_path)) == (expected, True)


def test_the_database_of_rpm_is_left_as_it_was(tmp_path: Path) -> None:
    rpm_database(tmp_path, [header({1000: "libnccl", 1001: "2.21.5"})])
    path = tmp_path / RPM_DATABASES[0]
    before = path.read_bytes(), sorted(path.parent.iterdir())
    path.chmod(0o444)
    installed(Node(tmp_path))
    assert (path.read_bytes(), sorted(path.parent.iterdir())) == before


@given(st.binary(max_size=200) | st.binary(max_size=64).map(lambda more: header({1000: "a", 1001: "b"})[:40] + more))
def test_whatever_a_header_holds_nothing_is_raised(blob: bytes) -> None:
    assert all(isinstance(text, str) for text in header_texts(blob).values())


@given(
    name=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=40),
    version=st.text("0123456789.", max_size=20),
)
def test_a_header_gives_back_name_and_version(name: str, version: str) -> None:
    assert header_texts(header({63: "other", 1001: version, 1000: name})) == {1000: name, 1001: version}


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"\0" * 5_000, b"no database"])
def test_a_damaged_database_is_none(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, RPM_DATABASES[1], content)
    assert installed(Node(tmp_path)) == ({}, False)


def test_no_package_database_is_told_from_an_empty_one(tmp_path: Path) -> None:
    assert installed(Node(tmp_path)) == ({}, False)
    put(tmp_path, DPKG_STATUS, "Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n")
    assert installed(Node(tmp_path)) == ({}, True)


# ---------------------------------------------------------------------- libraries


def test_the_library_counts_that_the_loader_takes(tmp_path: Path) -> None:
    folder = "usr/lib/x86_64-linux-gnu"
    for version in ("2.9.6", "2.21.5", "2.10.3"):
        put(tmp_path, f"{folder}/libnccl.so.{version}")
    assert library(Node(tmp_path), "nccl") == "2.21.5"
    link(tmp_path, f"{folder}/libnccl.so.2", "libnccl.so.2.10.3")
    assert library(Node(tmp_path), "nccl") == "2.10.3"


def test_a_header_speaks_where_no_library_does(tmp_path: Path) -> None:
    text = "#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 1\n#  define CUDNN_PATCHLEVEL 0\n#define CUDNN_VERSION (1)\n"
    put(tmp_path, "usr/include/cudnn_version.h", text)
    assert library(Node(tmp_path), "cudnn") == "9.1.0"
    assert library(Node(tmp_path), "nccl") == ""


@given(st.text(max_size=300))
def test_whatever_a_header_of_c_holds_nothing_is_raised(text: str) -> None:
    assert isinstance(of_header(text, ("CUDNN_MAJOR",)), str)


@given(st.tuples(st.integers(0, 99_999), st.integers(0, 99_999)))
def test_a_header_of_c_gives_its_numbers(numbers: tuple[int, int]) -> None:
    text = f"/* x */\n#define A {numbers[0]}\r\n#define B {numbers[1]}\n"
    assert of_header(text, ("A", "B")) == f"{numbers[0]}.{numbers[1]}"


def test_the_toolkit_by_both_of_its_files(tmp_path: Path) -> None:
    put(tmp_path, "usr/local/cuda/version.txt", "CUDA Version 10.2.89\n")
    assert cuda_toolkit(Node(tmp_path)) == "10.2.89"
    put(tmp_path, "usr/local/cuda/version.json", json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}))
    assert cuda_toolkit(Node(tmp_path)) == "12.4.1"


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["cuda", "version", "x"]), inner),
    max_leaves=8,
)


@given(_JSON.map(json.dumps) | st.text(max_size=100) | st.just("[" * 100_000))
def test_whatever_a_version_json_holds_nothing_is_raised(text: str) -> None:
    assert all(one in "0123456789." for one in cuda_of_json(text))
