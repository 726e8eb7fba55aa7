"""GPUs for the mock NVML. Limits are the products' own; loads, temperatures and counts are made up and plausible.

Loads go up and down and counters grow from answer to answer, as on a GPU at work, so that nothing looks frozen.
"""

from __future__ import annotations

from dataclasses import dataclass

from tocsin_testing.mock_nvml import MockGpu, MockPart, Number

MIB = 1 << 20
GIB = 1 << 30
ANY_LINK = 0xFFFF_FFFF

_PCIE_ERRORS = (169, *range(173, 184))


@dataclass(frozen=True)
class Profile:
    """A MIG profile of A100 and H100: NVML's number and id, slices, memory slices, multiprocessors, places."""

    number: int
    identity: int
    slices: int
    size: int
    processors: int
    starts: tuple[int, ...]


PROFILES = {
    "1g.10gb": Profile(0, 19, 1, 1, 16, (0, 1, 2, 3, 4, 5, 6)),
    "2g.20gb": Profile(1, 14, 2, 2, 32, (0, 2, 4)),
    "3g.40gb": Profile(2, 9, 3, 4, 60, (0, 4)),
    "4g.40gb": Profile(3, 5, 4, 4, 64, (0,)),
    "7g.80gb": Profile(4, 0, 7, 8, 132, (0,)),
}
"""The products' placement templates."""


@dataclass(frozen=True)
class Product:
    """What tells one product from another."""

    name: str
    memory: int
    reserved: int
    power: tuple[int, int]
    clocks: tuple[int, int]
    thresholds: tuple[int, int, int, int]
    links: int = 0
    generation: int = 4


H100 = Product("NVIDIA H100 80GB HBM3", 81559 * MIB, 534 * MIB, (200, 700), (1980, 2619), (92, 89, 95, 87), 18, 5)
A100 = Product("NVIDIA A100-SXM4-80GB", 81920 * MIB, 611 * MIB, (100, 400), (1410, 1593), (92, 89, 95, 85), 12)
B200 = Product("NVIDIA B200", 183359 * MIB, 812 * MIB, (200, 1000), (1965, 3996), (95, 92, 95, 90), 18, 6)
T4 = Product("Tesla T4", 15360 * MIB, 432 * MIB, (60, 70), (1590, 5001), (96, 93, 0, 85), 0, 3)


_ALIKE: dict[str, tuple[Number, ...]] = {
    "Brand": (14,),
    "Architecture": (9,),
    "ComputeMode": (0,),
    "PersistenceMode": (1,),
    "DisplayActive": (0,),
    "DisplayMode": (0,),
    "CudaComputeCapability": (9, 0),
    "NumGpuCores": (16896,),
    "MemoryBusWidth": (5120,),
    "SupportedEventTypes": (0x1FF,),
    "EncoderUtilization": (0, 167000),
    "DecoderUtilization": ("2~3", 167000),
    "JpgUtilization": (0, 167000),
    "OfaUtilization": (0, 167000),
    "CurrentClocksEventReasons": (0x4,),
    "CurrentClocksThrottleReasons": (0x4,),
    "SupportedClocksEventReasons": (0x1FF,),
    "PerformanceState": (0,),
    "PowerState": (0,),
    "MaxPcieLinkWidth": (16,),
    "CurrPcieLinkWidth": (16,),
    "EccMode": (1, 1),
    "DefaultEccMode": (1,),
    "MigMode": (0, 0),
    "MaxMigDeviceCount": (7,),
    "BAR1MemoryInfo": (128 * GIB, 6 * MIB),
}
"""What all of them answer alike."""


def h100(number: int = 0) -> MockGpu:
    """An H100 SXM at work; answers everything that the product and a current driver have."""
    gpu = _board(H100, number)
    _common_fields(gpu, H100, number)
    _hbm(gpu, number)
    _hopper(gpu)
    _nvlink4(gpu, H100.links)
    _mig_profiles(gpu)
    return gpu


def a100(number: int = 0) -> MockGpu:
    """An A100 SXM at work: no GPM, no thermal margin, no fabric."""
    gpu = _board(A100, number)
    _common_fields(gpu, A100, number)
    _hbm(gpu, number)
    _nvlink4(gpu, A100.links)
    _mig_profiles(gpu)
    return gpu


def b200(number: int = 0) -> MockGpu:
    """A B200 at work: NVLink 5 counters with packed error rates in place of those of NVLink 4."""
    gpu = _board(B200, number)
    _common_fields(gpu, B200, number)
    _hbm(gpu, number)
    _hopper(gpu)
    _nvlink5(gpu, B200.links)
    return gpu


def t4(number: int = 0) -> MockGpu:
    """A T4 with an older driver: page retirement, and few fields."""
    gpu = _board(T4, number)
    gpu.set("nvmlDeviceGetTotalEnergyConsumption", to=f"{7_000_000 + number}+350000")
    for function in ("nvmlDeviceGetRetiredPages", "nvmlDeviceGetRetiredPages_v2"):
        gpu.set(function, 0, to=2)
        gpu.set(function, 1, to=0)
    gpu.set("nvmlDeviceGetRetiredPagesPendingStatus", to=0)
    gpu.set("nvmlDeviceGetPcieReplayCounter", to=0)
    for number_, value in ((29, 2), (30, 0), (31, 0)):
        gpu.field(number_, value)
    for function in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization"):
        gpu.refuse(function, code="FUNCTION_NOT_FOUND")
    return gpu


def split(gpu: MockGpu, *profiles: str) -> MockGpu:
    """Switch MIG on and make one instance of each profile; what MIG takes away from the whole GPU is gone."""
    gpu.set("nvmlDeviceGetMigMode", to=(1, 1))
    for function in (
        "UtilizationRates",
        "EncoderUtilization",
        "DecoderUtilization",
        "JpgUtilization",
        "OfaUtilization",
    ):
        gpu.refuse(f"nvmlDeviceGet{function}", code="NOT_SUPPORTED")
    gpu.refuse("nvmlDeviceGetRemappedRows", code="INVALID_ARGUMENT")
    taken: set[int] = set()
    for index, name in enumerate(profiles):
        profile = PROFILES[name]
        start = _free_places(profile, taken)[0]
        taken.update(range(start, start + profile.size))
        gpu.migs[index] = _mig_device(gpu, index, name, start)
    _capacity(gpu, taken)
    return gpu


def _free_places(profile: Profile, taken: set[int]) -> list[int]:
    """Where instances of the profile still fit, one beside the other."""
    free: list[int] = []
    for start in profile.starts:
        end = free[-1] + profile.size if free else 0
        if start >= end and not taken & set(range(start, start + profile.size)):
            free.append(start)
    return free


def _capacity(gpu: MockGpu, taken: set[int]) -> None:
    for profile in PROFILES.values():
        left = len(_free_places(profile, taken))
        gpu.set("nvmlDeviceGetGpuInstanceRemainingCapacity", profile.identity, to=left)


def _mig_device(gpu: MockGpu, index: int, name: str, start: int) -> MockPart:
    profile = PROFILES[name]
    size = int(name.split(".")[1].removesuffix("gb")) * GIB
    used = size // (index + 2)
    mig = MockPart()
    mig.set("nvmlDeviceGetUUID", to=f"MIG-{gpu.uuid.removeprefix('GPU-')[:-2]}{index:02x}")
    mig.set("nvmlDeviceGetName", to=f"{gpu.answers['nvmlDeviceGetName',]} MIG {name}")
    mig.set("nvmlDeviceGetGpuInstanceId", to=index + 1)
    mig.set("nvmlDeviceGetComputeInstanceId", to=0)
    mig.set("nvmlGpuInstanceGetInfo", to=(index + 1, profile.identity, start, profile.size))
    attributes = (profile.processors, profile.slices, 0, 0, 0, 0, profile.slices, profile.slices, size // MIB)
    mig.set("nvmlDeviceGetAttributes_v2", to=attributes)
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"):
        mig.set(function, to=(size, 8 * MIB, size - used - 8 * MIB, used))
    mig.set("nvmlDeviceGetBAR1MemoryInfo", to=(size, MIB))
    if ("nvmlGpmQueryDeviceSupport",) in gpu.answers:
        mig.set("nvmlGpmQueryDeviceSupport", to=1)
        _activity(mig)
    return mig


def vgpu(gpu: MockGpu, system: MockPart, instance: int, profile: str = "NVIDIA H100-20C") -> None:
    """Add a vGPU instance to `gpu`; what it is goes into `system`."""
    known = gpu.answers.get(("nvmlDeviceGetActiveVgpus",), "")
    gpu.set("nvmlDeviceGetActiveVgpus", to=f"{known} {instance}".strip())
    gpu.set("nvmlDeviceGetVirtualizationMode", to=3)
    system.set("nvmlVgpuInstanceGetUUID", instance, to=f"0000{instance:04x}-1111-2222-3333-444444444444")
    system.set("nvmlVgpuInstanceGetVmID", instance, to=f"vm-{instance}")
    system.set("nvmlVgpuInstanceGetType", instance, to=1000 + instance)
    system.set("nvmlVgpuInstanceGetFbUsage", instance, to=5 * GIB)
    system.set("nvmlVgpuInstanceGetLicenseStatus", instance, to=1)
    system.set("nvmlVgpuTypeGetName", 1000 + instance, to=profile)
    system.set("nvmlVgpuTypeGetFramebufferSize", 1000 + instance, to=20 * GIB)


def _board(product: Product, n: int) -> MockGpu:
    gpu = MockGpu()
    texts = {
        "UUID": f"GPU-{n:08x}-{product.memory // MIB & 0xFFFF:04x}-4000-8000-0000000000{n:02x}",
        "Name": product.name,
        "Serial": f"16528{n:08d}",
        "VbiosVersion": "96.00.A5.00.01",
        "BoardPartNumber": f"699-2G520-0200-{n:03d}",
        "InforomImageVersion": "G520.0200.00.05",
        "PciInfo_v3": f"00000000:{0x1A + 16 * n:02X}:00.0",
    }
    own: dict[str, tuple[Number, ...]] = {
        "Index": (n,),
        "MinorNumber": (n,),
        "UtilizationRates": (f"{87 + n % 8}~5", "46~7"),
        "PcieReplayCounter": (n,),
        "MaxPcieLinkGeneration": (product.generation,),
        "GpuMaxPcieLinkGeneration": (product.generation,),
        "CurrPcieLinkGeneration": (product.generation,),
    }
    for name, text in texts.items():
        gpu.set(f"nvmlDeviceGet{name}", to=text)
    for name, values in (own | _ALIKE).items():
        gpu.set(f"nvmlDeviceGet{name}", to=values)
    _memory(gpu, product)
    _power(gpu, product, n)
    _clocks_and_temperatures(gpu, product, n)
    _ecc_calls(gpu)
    gpu.process(40_000 + n, 60 * GIB if product.memory > 70 * GIB else 8 * GIB)
    gpu.usage(40_000 + n, 1_700_000_000_000_000, 88, 41)
    return gpu


def _power(gpu: MockGpu, product: Product, n: int) -> None:
    low, high = (1000 * watts for watts in product.power)
    gpu.set("nvmlDeviceGetPowerUsage", to=f"{high - 60_000 + 1000 * n}~9000")
    gpu.set("nvmlDeviceGetPowerManagementMode", to=1)
    for limit in ("PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"):
        gpu.set(f"nvmlDeviceGet{limit}", to=high)
    gpu.set("nvmlDeviceGetPowerManagementLimitConstraints", to=(low, high))


def _memory(gpu: MockGpu, product: Product) -> None:
    used = product.memory * 3 // 4
    free = product.memory - product.reserved - used
    memory = (product.memory, product.reserved, f"{free}~{4 * MIB}", f"{used}~{-4 * MIB}")
    gpu.set("nvmlDeviceGetMemoryInfo_v2", to=memory)
    gpu.set("nvmlDeviceGetMemoryInfo", to=memory)


def _clocks_and_temperatures(gpu: MockGpu, product: Product, n: int) -> None:
    sm, memory = product.clocks
    for clock, fastest in ((0, sm), (1, sm), (2, memory), (3, sm - 200)):
        gpu.set("nvmlDeviceGetMaxClockInfo", clock, to=fastest)
        gpu.set("nvmlDeviceGetClockInfo", clock, to=fastest if clock == 2 else f"{fastest - 45}~30")
        gpu.set("nvmlDeviceGetApplicationsClock", clock, to=fastest)
        gpu.set("nvmlDeviceGetClock", clock, 0, to=fastest)
    gpu.set("nvmlDeviceGetSupportedMemoryClocks", to=(memory, 405))
    gpu.set("nvmlDeviceGetSupportedGraphicsClocks", memory, to=(*range(sm, 210, -(sm - 210) // 8), 210))
    for function in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
        gpu.set(function, 0, to=f"{58 + n}~2")
    for number, celsius in enumerate(product.thresholds):
        if celsius:
            gpu.set("nvmlDeviceGetTemperatureThreshold", number, to=celsius)


def _ecc_calls(gpu: MockGpu) -> None:
    for kind in (0, 1):
        for span in (0, 1):
            gpu.set("nvmlDeviceGetTotalEccErrors", kind, span, to=0)
            for location in (2, 7):
                gpu.set("nvmlDeviceGetMemoryErrorCounter", kind, span, location, to=0)


def _common_fields(gpu: MockGpu, product: Product, n: int) -> None:
    low, high = (1000 * watts for watts in product.power)
    for number in (3, 4, 5, 6, 11, 12, 22, 23, *range(142, 146), *_PCIE_ERRORS, 94, 95, 160):
        gpu.field(number, 0)
    gpu.field(1, 1, "uint")
    gpu.field(2, 1, "uint")
    for number in (74, 75, 76, 77, 78, 79, 80, 81, 269, 270, 271):
        gpu.field(number, f"{number * 1_000_000_000}+{40_000_000 if number == 74 else 0}")
    gpu.field(83, f"{9_000_000_000 + n}+3200000")
    gpu.field(91, product.links, "uint")
    for number, milliwatts in ((187, low), (188, high), (189, high), (190, high), (192, high)):
        gpu.field(number, milliwatts, "uint")
    gpu.field(185, f"{high - 60_000 + 1000 * n}~9000", "uint")
    gpu.field(186, f"{high - 55_000 + 1000 * n}~21000", "uint")
    gpu.field(197, f"{81_000_000_000}+{1_300_000_000}")
    gpu.field(198, f"{64_000_000_000}+{900_000_000}")
    gpu.field(226, 0, "uint")
    gpu.field(227, 0, "uint")
    gpu.field(230, 0, "uint")
    gpu.set("nvmlDeviceGetTotalEnergyConsumption", to=f"{9_000_000_000 + n}+3200000")


def _hbm(gpu: MockGpu, n: int) -> None:
    gpu.field(82, f"{66 + n}~3", "uint")
    gpu.set("nvmlDeviceGetRemappedRows", to=(0, 0, 0, 0))
    gpu.set("nvmlDeviceGetRowRemapperHistogram", to=(640, 0, 0, 0, 0))
    gpu.set("nvmlDeviceGetRepairStatus", to=(0, 0))
    gpu.set("nvmlDeviceGetSramEccErrorStatus", to=(0,) * 12)


def _hopper(gpu: MockGpu) -> None:
    for number, offset in ((193, -8), (194, -2), (195, 0), (196, 0)):
        gpu.field(number, offset, "int")
    gpu.set("nvmlDeviceGetMarginTemperature", to="24~2")
    gpu.set("nvmlDeviceGetUnrepairableMemoryFlag_v1", to=0)
    gpu.set("nvmlDeviceGetGpuUptime_v1", to="360000+5")
    gpu.set("nvmlDeviceGetGpuFabricInfoV", to=(3, 0, 1, 0, 1, 3))
    gpu.set("nvmlGpmQueryDeviceSupport", to=1)
    gpu.set("nvmlGpmQueryIfStreamingEnabled", to=0)
    _activity(gpu)


def _activity(part: MockPart) -> None:
    percent = {1: 96, 2: 91, 3: 38, 4: 7, 5: 63, 6: 0, 7: 62, 8: 0, 9: 0, 10: 52, 11: 0, 12: 11, 13: 9}
    for number, value in percent.items():
        part.set("nvmlGpmMetricsGet", number, to=f"{value + 0.5}~2" if value else "0.0")
    for number, rate in ((20, 240.5), (21, 180.25), (60, 21000.0), (61, 21000.0)):
        part.set("nvmlGpmMetricsGet", number, to=f"{rate}~12")


def _nvlink4(gpu: MockGpu, links: int) -> None:
    for number in (38, 45, 52, 59):
        gpu.field(number, 0)
    gpu.field(138, "70000000000+5500000", scope=ANY_LINK)
    gpu.field(139, "70000000000+5500000", scope=ANY_LINK)
    for link in range(links):
        gpu.field(165, 1, "uint", scope=link)
        gpu.field(166, 7, "uint", scope=link)
        gpu.field(164, 26562, "uint", scope=link)
        for number in (161, 162, 163):
            gpu.field(number, 0, scope=link)
        _link_calls(gpu, link)


def _nvlink5(gpu: MockGpu, links: int) -> None:
    for number, step in ((202, 5_600_000_000), (204, 5_600_000_000), (213, 0), (214, 0), (215, 0), (221, 0)):
        gpu.field(number, f"0+{step}", scope=ANY_LINK)
    for link in range(links):
        gpu.field(165, 1, "uint", scope=link)
        gpu.field(202, "4000000000+310000000", scope=link)
        gpu.field(204, "4000000000+310000000", scope=link)
        for number in (213, 214, 215, 219, 221):
            gpu.field(number, 0, scope=link)
        for number in (218, 220, 222):
            gpu.field(number, packed_rate(15, 254), scope=link)
        _link_calls(gpu, link, errors=False)


def _link_calls(gpu: MockGpu, link: int, errors: bool = True) -> None:
    gpu.set("nvmlDeviceGetNvLinkState", link, to=1)
    gpu.set("nvmlDeviceGetNvLinkVersion", link, to=7)
    for counter in range(4) if errors else ():
        gpu.set("nvmlDeviceGetNvLinkErrorCounter", link, counter, to=0)


def packed_rate(mantissa: int, exponent: int) -> int:
    """An error rate of NVLink 5 as the driver packs it: mantissa times ten to the minus exponent."""
    return mantissa << 8 | exponent


def _mig_profiles(gpu: MockGpu) -> None:
    for name, profile in PROFILES.items():
        memory = int(name.split(".")[1].removesuffix("gb")) * 1024
        room = len(profile.starts)
        numbers = (profile.identity, 0, profile.slices, room, profile.processors, 1, 1, 0, 1, 0, memory)
        gpu.set("nvmlDeviceGetGpuInstanceProfileInfo", profile.number, to=numbers)
        gpu.set("nvmlDeviceGetGpuInstanceProfileInfoV", profile.number, to=f"MIG {name}")
        places = [number for start in profile.starts for number in (start, profile.size)]
        gpu.set("nvmlDeviceGetGpuInstancePossiblePlacements_v2", profile.identity, to=places)
    _capacity(gpu, set())
