"""What a management controller says is wrong: leaks, coolant out of its limits, fans and power supplies that failed.

Property names are those of DMTF's schemas: ThermalSubsystem 1.5, LeakDetector 1.6, CoolingUnit 1.5, CoolantConnector
1.4, Fan 1.6, PowerSupply 1.7, Sensor, and of the older Thermal and Power, which are read where a chassis has no new
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tocsin.collector.redfish.client import Get, RedfishFailed, Resource
from tocsin.domain.node_fault import NodeFault

MOST_MEMBERS = 64
"""Members of one collection that are looked at."""
ROOT = "/redfish/v1/"
_BAD = frozenset({"Warning", "Critical"})
_LEAK = frozenset({"Warning", "Critical"})
_NO_INPUT = {"LossOfInput": "has lost its input", "OutOfRange": "has an input out of range"}
_NAME_LIMIT = 64

FLOW, SUPPLY = "coolant_flow_liters_per_minute", "coolant_supply_temperature_celsius"


@dataclass(slots=True)
class Look:
    """What one look found: parts that are at fault by kind, in words; coolant figures, and what could not be read."""

    faults: dict[NodeFault, list[str]] = field(default_factory=dict)
    flows: list[float] = field(default_factory=list)
    supplies: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    known: set[NodeFault] = field(default_factory=set)
    """Kinds of which some part was read, so that their silence means that nothing is wrong."""

    def says(self, kind: NodeFault, words: str = "") -> None:
        """A part of `kind` was read; `words` tell what is wrong with it."""
        self.known.add(kind)
        if words and words not in self.faults.setdefault(kind, []):
            self.faults[kind].append(words)


class Walk:
    """One walk over a controller. What fails below a chassis is noted and leaves the rest alone."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self.look = Look()

    def run(self) -> Look:
        """Look at all chassis and coolant distribution units. Raises RedfishFailed where not even the root answers."""
        root = self._get(ROOT)
        for chassis in self._members(root, "Chassis"):
            name = _name(chassis)
            if "ThermalSubsystem" in chassis:
                self._each(chassis, "ThermalSubsystem", partial(self._thermal, chassis=name))
            else:
                self._each(chassis, "Thermal", partial(self._old_thermal, chassis=name))
            if "PowerSubsystem" in chassis:
                self._each(chassis, "PowerSubsystem", partial(self._power, chassis=name))
            else:
                self._each(chassis, "Power", partial(self._old_power, chassis=name))
        self._each(root, "ThermalEquipment", self._equipment)
        return self.look

    def _equipment(self, equipment: Resource) -> None:
        for unit in self._members(equipment, "CDUs"):
            name = _name(unit)
            self._leaks(unit, name)
            for side in ("PrimaryCoolantConnectors", "SecondaryCoolantConnectors"):
                self._connectors(unit, side, name)

    def _thermal(self, thermal: Resource, chassis: str) -> None:
        for fan in self._members(thermal, "Fans"):
            self._part(NodeFault.FAN, fan, f"fan {_name(fan)} of {chassis}")
        self._leaks(thermal, chassis)
        self._connectors(thermal, "CoolantConnectors", chassis)

    def _power(self, power: Resource, chassis: str) -> None:
        for supply in self._members(power, "PowerSupplies"):
            self._supply(supply, chassis)

    def _old_thermal(self, thermal: Resource, chassis: str) -> None:
        for fan in _rows(thermal, "Fans"):
            self._part(NodeFault.FAN, fan, f"fan {_name(fan, 'Name', 'FanName')} of {chassis}")

    def _old_power(self, power: Resource, chassis: str) -> None:
        for supply in _rows(power, "PowerSupplies"):
            self._supply(supply, chassis)

    def _supply(self, supply: Resource, chassis: str) -> None:
        named = f"power supply {_name(supply)} of {chassis}"
        without = _NO_INPUT.get(str(supply.get("LineInputStatus", "")))
        if without and _present(supply):
            self.look.says(NodeFault.POWER_SUPPLY, f"{named} {without}")
        else:
            self._part(NodeFault.POWER_SUPPLY, supply, named)

    def _part(self, kind: NodeFault, part: Resource, named: str) -> None:
        health = _status(part).get("Health")
        if _present(part) and isinstance(health, str):
            self.look.says(kind, f"{named} is {health}" if health in _BAD else "")

    def _leaks(self, owner: Resource, name: str) -> None:
        def detection(found: Resource) -> None:
            for detector in self._members(found, "LeakDetectors"):
                self._detector(detector, detector.get("Name"), name)
            for group in _rows(found, "LeakDetectorGroups"):
                for row in _rows(group, "Detectors"):
                    self._detector(row, row.get("DeviceName"), name)

        self._each(owner, "LeakDetection", detection)

    def _detector(self, detector: Resource, name: object, owner: str) -> None:
        state = detector.get("DetectorState")
        if state == "OK" or state in _LEAK:
            named = f"leak detector {_short(name)} of {owner}"
            self.look.says(NodeFault.LEAK, f"{named} is {state}" if state in _LEAK else "")

    def _connectors(self, owner: Resource, key: str, name: str) -> None:
        for connector in self._members(owner, key):
            if not _present(connector):
                continue
            named = f"{_name(connector)} of {name}"
            self._coolant(NodeFault.COOLANT_FLOW, connector.get("FlowLitersPerMinute"), f"coolant flow, {named}")
            supply = connector.get("SupplyTemperatureCelsius")
            self._coolant(NodeFault.COOLANT_TEMPERATURE, supply, f"coolant supply temperature, {named}")

    def _coolant(self, kind: NodeFault, excerpt: object, named: str) -> None:
        """A reading, against the limits of its sensor."""
        reading = _number(excerpt.get("Reading")) if isinstance(excerpt, dict) else None
        if not isinstance(excerpt, dict) or reading is None:
            return
        (self.look.flows if kind is NodeFault.COOLANT_FLOW else self.look.supplies).append(reading)
        source = excerpt.get("DataSourceUri")
        if isinstance(source, str):
            try:
                sensor = self._get(source)
            except RedfishFailed as error:
                self.look.failed.append(str(error))
            else:
                self.look.says(kind, _beyond(sensor, reading, named))

    def _each(self, owner: Resource, key: str, read: Callable[[Resource], None]) -> None:
        path = _link(owner.get(key))
        if path:
            try:
                read(self._get(path))
            except RedfishFailed as error:
                self.look.failed.append(str(error))

    def _members(self, owner: Resource, key: str) -> Iterator[Resource]:
        """The resources of the collection that `owner` links to as `key`, but those that cannot be read."""
        path = _link(owner.get(key))
        if not path:
            return
        try:
            rows = self._get(path).get("Members")
        except RedfishFailed as error:
            self.look.failed.append(str(error))
            return
        for row in rows[:MOST_MEMBERS] if isinstance(rows, list) else ():
            try:
                # A controller may give members whole; most give links.
                yield row if isinstance(row, dict) and len(row) > 1 else self._get(_link(row))
            except RedfishFailed as error:
                self.look.failed.append(str(error))


def _beyond(sensor: Resource, reading: float, named: str) -> str:
    """What is wrong with `reading` by the thresholds and the health of its sensor; empty where nothing is."""
    thresholds = sensor.get("Thresholds")
    limits = thresholds if isinstance(thresholds, dict) else {}
    for side, name in (("Upper", "above"), ("Lower", "below")):
        for weight in ("Critical", "Caution"):
            row = limits.get(f"{side}{weight}")
            limit = _number(row.get("Reading")) if isinstance(row, dict) else None
            if limit is not None and (reading > limit if side == "Upper" else reading < limit):
                return f"{named}: {reading:g}, {name} its limit of {limit:g}"
    health = _status(sensor).get("Health")
    return f"{named}: {reading:g}, {health}" if health in _BAD else ""


def _status(resource: Resource) -> dict[str, Any]:
    status = resource.get("Status")
    return status if isinstance(status, dict) else {}


def _present(resource: Resource) -> bool:
    return _status(resource).get("State") not in ("Absent", "Disabled")


def _rows(resource: Resource, key: str) -> Iterator[Resource]:
    rows = resource.get(key)
    yield from (row for row in (rows[:MOST_MEMBERS] if isinstance(rows, list) else ()) if isinstance(row, dict))


def _link(value: object) -> str:
    path = value.get("@odata.id") if isinstance(value, dict) else None
    return path if isinstance(path, str) else ""


def _name(resource: Resource, *keys: str) -> str:
    return next((_short(resource[key]) for key in (*keys, "Name", "Id", "MemberId") if resource.get(key)), "?")


def _short(value: object) -> str:
    return "".join(letter for letter in str(value or "?") if letter.isprintable())[:_NAME_LIMIT]


def _number(value: object) -> float | None:
    """A finite number; None for what is none, a boolean included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
