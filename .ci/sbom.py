"""CycloneDX SBOM of what `pip install --dry-run --report` would install, on standard output: sbom.py REPORT VERSION."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from os import environ
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "tocsin"


def component(item: dict[str, Any]) -> Component:
    """One package, with the hash of the file that pip would take."""
    told = item["metadata"]
    name, version = canonicalize_name(told["name"]), told["version"]
    own = name == NAME
    # Older packages have the whole text of their licence there.
    terms = told.get("license_expression") or told.get("license", "")
    # The wheel's own hash stands in SHA256SUMS, beside this file.
    sha256 = "" if own else item.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256", "")
    purl = PackageURL("pypi", None, name, version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION if own else ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(terms)] if terms and "\n" not in terms else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
    )


def needs(item: dict[str, Any], known: dict[str, Component], extras: set[str]) -> list[Component]:
    """The packages of `known` that one asks for."""
    wanted = map(Requirement, item["metadata"].get("requires_dist", []))
    held = [
        one
        for one in wanted
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    ]
    return [known[name] for one in held if (name := canonicalize_name(one.name)) in known]


def bom(report: dict[str, Any], version: str, made: datetime) -> Bom:
    """The whole of a report of pip."""
    known = {canonicalize_name(item["metadata"]["name"]): component(item) for item in report["install"]}
    own = known.pop(NAME)
    whole = Bom(
        components=known.values(),
        metadata=BomMetaData(component=own, timestamp=made),
        serial_number=uuid5(NAMESPACE_URL, f"{NAME} {version} {made.isoformat()}"),
    )
    everything = {**known, NAME: own}
    for item in report["install"]:
        name = canonicalize_name(item["metadata"]["name"])
        asked = set(item.get("requested_extras", [])) | {""}
        whole.register_dependency(everything[name], needs(item, known, asked))
    return whole


def main(report: Path, version: str) -> None:
    """Write the SBOM; ends with 1 where it is none."""
    made = datetime.fromtimestamp(int(environ["SOURCE_DATE_EPOCH"]), UTC)
    text = JsonV1Dot6(bom(json.loads(report.read_text()), version, made)).output_as_string(indent=2)
    errors = JsonStrictValidator(JsonV1Dot6(Bom()).schema_version).validate_str(text)
    if errors is not None:
        raise SystemExit(f"the SBOM is not valid CycloneDX: {errors}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
