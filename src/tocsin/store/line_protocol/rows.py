"""Lines about GPUs, put together to readings: one for each (GPU, instant)."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.domain.identity import Gpu
from tocsin.domain.missing import Missing
from tocsin.domain.owner import Owner
from tocsin.domain.reading import Reading


@dataclass(slots=True)
class _Row:
    """The reading of one (GPU, instant) while its lines come in."""

    gpu: Gpu
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()


class LineRows:
    """Collects values, reasons and attributes in the order of their lines; of two values the later holds."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], _Row] = {}
        self._infos: dict[tuple[str, int], Gpu] = {}
        self._newest_info: dict[str, tuple[int, Gpu]] = {}

    def put(self, gpu: Gpu, at_ms: int, values: dict[str, float], missing: dict[str, Missing]) -> None:
        """Take over `values` and `missing`; a line that has neither makes no reading."""
        if not values and not missing:
            return
        row = self._rows.get((gpu.uuid, at_ms))
        if row is None:
            self._rows[gpu.uuid, at_ms] = _Row(gpu, values, missing)
            return
        row.values.update(values)
        row.missing.update(missing)

    def put_info(self, gpu: Gpu, at_ms: int) -> None:
        """The attributes of `gpu`, which is a reading, if of nothing else."""
        key = (gpu.uuid, at_ms)
        self._infos[key] = gpu
        if at_ms >= self._newest_info.get(gpu.uuid, (at_ms, gpu))[0]:
            self._newest_info[gpu.uuid] = (at_ms, gpu)
        if key not in self._rows:
            self._rows[key] = _Row(gpu)

    def put_owners(self, gpu: Gpu, at_ms: int, owners: tuple[Owner, ...]) -> None:
        """The processes on `gpu`; a line that lists none takes none away."""
        row = self._rows.setdefault((gpu.uuid, at_ms), _Row(gpu))
        row.owners = owners or row.owners

    def _gpu_of(self, key: tuple[str, int], bare: Gpu) -> Gpu:
        known = self._infos.get(key)
        return known or self._newest_info.get(key[0], (0, bare))[1]

    def readings(self) -> list[Reading]:
        """One for each GPU and instant, in the order of their first lines; a value outranks a reason."""
        found = []
        for key, row in self._rows.items():
            missing = row.missing
            if not missing.keys().isdisjoint(row.values):
                missing = {name: reason for name, reason in missing.items() if name not in row.values}
            found.append(Reading(self._gpu_of(key, row.gpu), key[1], row.values, missing, row.owners))
        return found
