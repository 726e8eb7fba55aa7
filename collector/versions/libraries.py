"""CUDA, NCCL and cuDNN as they lie on the node, by their own files.

A job in a container brings its own: what is found here is what runs outside of containers, and what the images of
nodes were built with.
"""

from __future__ import annotations

import json
import re

from tocsin.collector.versions.files import Node
from tocsin.domain.versions import by_number

FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/local/cuda/lib64",
    "usr/local/lib",
    "usr/lib",
)
"""Where libraries are looked for; the first folder that has one counts."""
_CUDA = "usr/local/cuda"
_TEXT = re.compile(r"CUDA Version (\d+(?:\.\d+){1,3})")
_VERSION = re.compile(r"\d+(?:\.\d+){1,4}")
_FILES = {
    "nccl": re.compile(r"libnccl\.so\.(\d{1,4}\.\d{1,4}\.\d{1,4})"),
    "cudnn": re.compile(r"libcudnn\.so\.(\d{1,4}\.\d{1,4}\.\d{1,4})"),
}
_LINKS = {"nccl": ("libnccl.so.2",), "cudnn": ("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so")}
_HEADERS = {
    "nccl": (("usr/include/nccl.h",), ("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH")),
    "cudnn": (
        ("usr/include/cudnn_version.h", "usr/local/cuda/include/cudnn_version.h", "usr/include/cudnn.h"),
        ("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"),
    ),
}
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z_]{1,40})[ \t]+(\d{1,5})[ \t\r]*$", re.MULTILINE)


def cuda_toolkit(node: Node) -> str:
    """The toolkit that ``/usr/local/cuda`` points to, by its version.json (11.1 and newer) or version.txt; or empty."""
    text = node.text(f"{_CUDA}/version.json")
    if text is not None:
        return cuda_of_json(text)
    match = _TEXT.search((node.text(f"{_CUDA}/version.txt") or "")[:4_096])
    return match[1] if match else ""


def cuda_of_json(text: str) -> str:
    """The version that a version.json gives; empty where it gives none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    part = document.get("cuda") if isinstance(document, dict) else None
    version = part.get("version") if isinstance(part, dict) else None
    return version if isinstance(version, str) and len(version) < 40 and _VERSION.fullmatch(version) else ""


def library(node: Node, component: str) -> str:
    """The version of ``nccl`` or ``cudnn`` by the names of its files, else by its header; empty where there is none.

    The file that the loader would take counts, which is what the link of its major version names; else the newest.
    """
    pattern = _FILES[component]
    for folder in FOLDERS:
        for link in _LINKS[component]:
            if match := pattern.fullmatch(node.link_name(f"{folder}/{link}")):
                return match[1]
        found = [match[1] for name in node.names(folder) if (match := pattern.fullmatch(name))]
        if found:
            return max(found, key=by_number)
    files, names = _HEADERS[component]
    return next((version for file in files if (version := of_header(node.text(file, 4_194_304) or "", names))), "")


def of_header(text: str, names: tuple[str, ...]) -> str:
    """The version that a C header defines as numbers of these `names`; empty where one lacks."""
    numbers = {match[1]: int(match[2]) for match in _DEFINE.finditer(text)}
    return ".".join(str(numbers[name]) for name in names) if all(name in numbers for name in names) else ""
