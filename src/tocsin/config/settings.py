"""Settings: one TOML file, then environment variables ``TOCSIN_SECTION__KEY``, then files of a secrets folder.

The environment outranks the file, a secret file outranks both. An unknown key anywhere is an error that names it and
the nearest known one. Durations are seconds, sizes bytes, ratios 0 to 1.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from tocsin.config.access import ApiSettings
from tocsin.config.address import HttpUrl, ListenAddress, split_address
from tocsin.config.alertmanager import AlertmanagerSettings
from tocsin.config.at_rest import AtRestSettings
from tocsin.config.cell import CellSettings
from tocsin.config.cloud import AwsSettings, CloudSettings, ScaleWebhookSettings
from tocsin.config.grafana import GrafanaSettings
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.config.node import NodeSettings
from tocsin.config.notify import NotifySettings
from tocsin.config.otlp import OtlpSettings
from tocsin.config.planning import PlanningSettings
from tocsin.config.promql import PromqlSettings
from tocsin.config.redfish import RedfishSettings
from tocsin.config.section import Section
from tocsin.config.slurm import SlurmSettings
from tocsin.config.usage import UsageSettings
from tocsin.domain.decision import Mode
from tocsin.domain.errors import InputError
from tocsin.domain.usage import Prices
from tocsin.plugins import Kind, known

# Settings of the page on cost: what is paid for GPUs and energy.


class PriceSettings(Section):
    """What is paid; where nothing is set, hours and kWh are shown without money (docs/dashboard.md)."""

    currency: str = Field(default="", max_length=10)
    """Name or sign of the currency, such as `EUR`; shown as it is."""
    gpu_hour: dict[str, float] = Field(default_factory=dict)
    """Price of a GPU-hour by a part of the model's name, as `{ H100 = 2.4, A100 = 1.3 }`; the longest part counts."""
    gpu_hour_default: float | None = Field(default=None, ge=0)
    """Price of a GPU-hour of every other model; unset: none."""
    kwh: float | None = Field(default=None, ge=0)
    """Price of a kWh; unset: none."""
    pue: float = Field(default=1.0, ge=1, le=5)
    """Energy of the facility for each kWh of the boards (power usage effectiveness)."""

    @field_validator("gpu_hour")
    @classmethod
    def _not_negative(cls, value: dict[str, float]) -> dict[str, float]:
        if any(price < 0 or not name for name, price in value.items()):
            raise ValueError("a price has a model's name and is not below 0")
        return value

    def prices(self) -> Prices:
        return Prices(self.currency, self.gpu_hour, self.gpu_hour_default, self.kwh, self.pue)


class AgentSettings(Section):
    """The agent: one per node."""

    source: str = "auto"
    """Where readings come from: `auto`, `nvml`, `nvidia_smi`, `dcgm_exporter`, `dcgmi`, `amdsmi`, `npu_smi`,
    `simulated` or `replay`.

    `auto` is `nvml`, or the first of `nvidia_smi`, `amdsmi` and `npu_smi` that answers where no NVML library can be
    loaded.
    """
    interval_seconds: float = Field(default=10.0, gt=0)
    """Time between two readings of a GPU."""
    replay: list[Path] = Field(default_factory=list)
    """Files that source `replay` lives through again: tidy CSV or text of dcgm-exporter, plain, gzip or bz2."""
    replay_speed: float = Field(default=1.0, gt=0)
    """Recorded seconds that pass in one second of a replay."""
    dcgm_url: HttpUrl = "http://127.0.0.1:9400/metrics"
    """Page of the dcgm-exporter that source `dcgm_exporter` reads."""
    dcgmi_command: list[str] = Field(default_factory=lambda: ["dcgmi"], min_length=1)
    """Command, with leading arguments, that source `dcgmi` runs."""
    nvidia_smi_command: list[str] = Field(default_factory=lambda: ["nvidia-smi"], min_length=1)
    """Command, with leading arguments, that source `nvidia_smi` runs."""
    npu_smi_command: list[str] = Field(default_factory=lambda: ["npu-smi"], min_length=1)
    """Command, with leading arguments, that source `npu_smi` runs."""
    npu_faults: Path | None = None
    """File with the fault list of Ascend's device plugin: key `DeviceInfoCfg` of its ConfigMap, which source `npu_smi`
    reads with each reading; unset: none."""
    kernel_log: Literal["auto", "off", "kmsg", "journald"] = "auto"
    """Where XIDs and the like are read beside the source; `auto` is `/dev/kmsg`, or journald where that is shut."""
    hook_socket: str = "/run/tocsin/hook.sock"
    """Unix socket that training processes report to; empty: none. Sources `simulated` and `replay` open none."""
    release_file: str = "/run/tocsin/release"
    """While this file is there, for 30 minutes at most, source `nvml` lets go of the GPUs so that they can be reset;
    empty: never."""
    vllm_urls: list[str] = Field(default_factory=list)
    """Pages of vLLM servers on this node."""
    attribution: bool = True
    """Whether processes on a GPU are traced to their container, pod or Slurm job."""
    host_load: bool = True
    """Whether CPU, waits for storage, pressure and memory of the node go with the readings of its GPUs."""
    network: bool = True
    """Whether the InfiniBand and RoCE ports of the node go with the readings of the GPUs that they serve."""
    network_interfaces: list[str] = Field(default_factory=list)
    """Patterns of further Ethernet interfaces that carry the traffic of jobs, such as `ens*`."""
    network_rails: dict[str, str] = Field(default_factory=dict)
    """Rail of each port or card, as `{ mlx5_0 = "rail-0", "mlx5_1:1" = "rail-1" }`; it becomes the rail of the GPU that
    the port serves."""
    host_errors: bool = True
    """Whether PCIe errors on the way to GPUs and network cards, and memory errors of the node, become events."""
    versions: bool = True
    """Whether versions of kernel, libraries, packages and network cards of the node go with its GPUs as labels."""
    host_root: Path = Path("/")
    """The host's root folder, in which packages and libraries are looked for; a container may have it, or the parts
    that are to be read, elsewhere."""
    sys: Path = Path("/sys")
    """The host's `/sys`; a container may have it elsewhere."""
    proc: Path = Path("/proc")
    """The host's `/proc`, which attribution and host load read; a container may have it elsewhere."""
    pod_logs: Path = Path("/var/log/pods")
    """The kubelet's log folders, whose names tell a pod's name and namespace by its UID."""
    listen: ListenAddress = "127.0.0.1:9835"
    """Address of `/metrics`; port 0 takes a free one."""
    push_url: HttpUrl = ""
    """Base URL that takes line protocol at `/api/v2/write` (a brain, InfluxDB 2.x, VictoriaMetrics); empty: no push."""
    cell_urls: list[HttpUrl] = Field(default_factory=list, max_length=1_000)
    """Base URLs of the brains of other cells (docs/cells.md). Where a brain answers that this node belongs to one of
    them the agent goes on there; to any other address it sends nothing."""
    push_org: str = "tocsin"
    """InfluxDB organisation to write to."""
    push_bucket: str = "tocsin"
    """InfluxDB bucket to write to."""
    push_owner_labels: bool = False
    """Whether who uses a GPU is written as labels too: for VictoriaMetrics, which keeps no text. A series for each
    workload of a GPU."""
    push_token: SecretStr = SecretStr("")
    """Token sent with every push."""
    push_token_file: Path | None = None
    """File that holds it, read again when it changes, so that it can be renewed."""
    push_ca: Path | None = None
    """CA file for the receiver's certificate; unset: those of the system."""
    push_certificate: Path | None = None
    """PEM file of the certificate that the agent shows to the receiver (mTLS); unset: none."""
    push_key: Path | None = None
    """PEM file of its key."""
    push_timeout_seconds: float = Field(default=10.0, gt=0)
    """How long one push may take."""
    spool: Path = Path("var/agent/spool.db")
    """File that keeps readings until they are acknowledged."""
    spool_max_bytes: int = Field(default=512 * 1024 * 1024, ge=1024 * 1024)
    """Bound of the spool; the oldest readings are dropped, and counted, beyond it."""
    host: str = ""
    """Name of this node; empty takes the host name."""
    pool: str = "default"
    """Pool that this node's GPUs belong to."""
    rack: str = ""
    """Failure domain above the node, such as a rack."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Further labels of this node's GPUs, for scopes of rules and for opting in to actions."""

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if self.push_token.get_secret_value() and self.push_token_file:
            raise ValueError("push_token and push_token_file: give one of them")
        return self


class SimulationSettings(Section):
    """The simulated fleet of `tocsin demo` and of the agent's source `simulated`."""

    gpus: int = Field(default=64, ge=1, le=100_000)
    """How many GPUs."""
    seed: int = 7
    """Seed: the same seed and start give the same fleet."""
    speed: float = Field(default=60.0, gt=0)
    """Simulated seconds per second of wall time."""
    interval_seconds: float = Field(default=60.0, gt=0)
    """Simulated time between two readings."""
    fault_rate_scale: float = Field(default=1.0, ge=0)
    """Multiplier on the published fault rates; a rehearsal wants more faults than a real fleet has."""
    software_rate_scale: float | None = Field(default=None, ge=0)
    """The same for crashes, leaks and fragmentation alone; unset: as `fault_rate_scale`."""
    benign_rate_scale: float | None = Field(default=None, ge=0)
    """The same for precursors that lead to nothing; unset: as `fault_rate_scale`."""
    scenario: Path | None = None
    """File of the numbers that decide how hard faults are to foresee (docs/simulation.md); default: the shipped one."""


class StoreKind(StrEnum):
    """Where readings are kept."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    INFLUXDB = "influxdb"
    VICTORIAMETRICS = "victoriametrics"


def _store_kind(name: str) -> str:
    """One of Tocsin's as its member, which the code compares by identity; one of another package by its name."""
    return StoreKind(name) if name in set(StoreKind) else known(Kind.STORE, name)


class StoreSettings(Section):
    """The store of readings, events, findings and predictions."""

    kind: Annotated[str, AfterValidator(_store_kind)] = StoreKind.SQLITE
    """`sqlite` (embedded), `influxdb`, `victoriametrics` or `memory`."""
    path: Path = Path("var/brain/store.db")
    """File of the embedded store; its history lies in a folder of the same name with `.segments` behind it."""
    url: HttpUrl = "http://127.0.0.1:8086"
    """Server of an InfluxDB or VictoriaMetrics store."""
    read_url: HttpUrl = ""
    """Where a VictoriaMetrics store is read, if not where it is written to, as in a cluster; empty: `url`."""
    org: str = "tocsin"
    """InfluxDB organisation."""
    bucket: str = "tocsin"
    """InfluxDB bucket."""
    token: SecretStr = SecretStr("")
    """InfluxDB token."""
    raw_days: float = Field(default=7.0, gt=0)
    """Age up to which readings are kept as they were taken."""
    minute_days: float = Field(default=90.0, gt=0)
    """Age up to which they are kept as values of whole minutes; also the age at which predictions are removed."""
    ten_minute_days: float = Field(default=730.0, gt=0)
    """Age up to which they are kept as values of ten minutes; events and findings are removed with them."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """How long one request to a store server may take."""

    @model_validator(mode="after")
    def _ages_rise(self) -> Self:
        if not self.raw_days <= self.minute_days <= self.ten_minute_days:
            raise ValueError("raw_days must not exceed minute_days, nor minute_days ten_minute_days")
        return self

    @model_validator(mode="after")
    def _only_one_kind_is_read_elsewhere(self) -> Self:
        if self.read_url and self.kind is not StoreKind.VICTORIAMETRICS:
            raise ValueError(f"read_url is for kind victoriametrics; a store of kind {self.kind} has one address")
        return self


class JournalSettings(Section):
    """The hash-chained record of all that was found, decided and done."""

    path: Path = Path("var/brain/journal.db")
    """File of the journal, where `url` is empty."""
    url: SecretStr = SecretStr("")
    """PostgreSQL database of the journal in place of the file, such as
    `postgresql://tocsin:...@db.example:5432/tocsin?sslmode=verify-full`: any number of brains share it, one of them
    acts. Then the lease is a row of it, and `actions.lease_file` and the lease of `kubernetes.lease` are not asked."""
    cell: str = Field(default="fleet", pattern=r"^[a-z][a-z0-9_]{0,39}$")
    """Cell whose journal it is in that database: its tables are in schema `tocsin_<cell>`."""
    lease_seconds: float = Field(default=5.0, ge=1, le=60)
    """Time after its last renewal at which another brain of the cell takes the lease over, by the database's clock; a
    holder stops by itself after two thirds of it."""
    by_hand: Path | None = None
    """Journal of what a person did by `tocsin act` while no brain took the record; unset:
    `~/.local/state/tocsin/by-hand.db` of that person."""
    witness: Path | None = None
    """File on another volume that remembers how far the journal has come, so that a brain with a restored or shortened
    journal starts paused; its folder must exist. `kubernetes.lease` is a witness as well. Without any, a restored
    journal acts again."""
    witness_seconds: float = Field(default=5.0, gt=0, le=60)
    """How long a start waits for the answer of a witness; one that answers later still pauses."""

    keep_entries: int = Field(default=100_000, ge=50_000, le=2**62)
    """Newest entries that stay in the journal's own file; older ones go, 50,000 at a time, into files of the folder
    `<path>.archive`, which belong to the journal: it is read, checked, exported and backed up with them."""
    key_file: Path | None = None
    """File of the key that seals the end of the journal, outside the journal's folder; made at the first start, for its
    owner alone. Who may write the folder and has no key can rewrite nothing unnoticed. Unset: no seal."""

    @model_validator(mode="after")
    def _elsewhere(self) -> Self:
        for name, path, why in (("witness", self.witness, "restored"), ("key_file", self.key_file, "read")):
            if path is not None and path.absolute().parent == self.path.absolute().parent:
                raise ValueError(f"{name} {path} lies beside the journal and would be {why} with it; put it elsewhere")
        return self


class RulesSettings(Section):
    """Where rules come from."""

    path: Path | None = None
    """TOML file of rules in place of the shipped ones."""
    xid_overrides: Path | None = None
    """TOML file of `[[xid]]` and `[[sxid]]` tables that correct the catalogues of driver and NVSwitch errors."""
    evaluate_seconds: float = Field(default=15.0, gt=0)
    """Time between two evaluations."""
    least_precision: float = Field(default=0.2, ge=0, le=1)
    """Share of the signs of a rule that foretells failures which must be followed by one; below it they are notes."""


class TaskShare(Section):
    """One kind of job in the task mix."""

    gpus: float = Field(gt=0, le=1024)
    """GPUs that it takes on one node; below 1 a part of one GPU."""
    share: float = Field(gt=0)
    """How often it comes, in any unit."""

    @field_validator("gpus")
    @classmethod
    def _whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("a job takes a part of one GPU or whole GPUs")
        return value


class FragmentationSettings(Section):
    """What free GPUs are measured by."""

    task_mix: list[TaskShare] = Field(default_factory=list)
    """Jobs that free GPUs are measured by, as `{ gpus = 8, share = 0.3 }`; empty takes the jobs that run now."""


class ForecastEngine(StrEnum):
    """Where live forecasts are computed."""

    LOCAL = "local"
    RAY = "ray"


class ForecastSettings(Section):
    """Time-to-threshold forecasts."""

    every_seconds: float = Field(default=300.0, gt=0)
    """Time between two forecasts of a GPU; six times as long where nothing is expected of it."""
    history_hours: float = Field(default=24.0, gt=0)
    """How much past a forecast looks at."""
    horizon_hours: float = Field(default=48.0, gt=0)
    """How far ahead it looks."""
    coverage: float = Field(default=0.8, gt=0, lt=1)
    """Nominal coverage of the interval."""
    least_precision: float = Field(default=0.5, ge=0, le=1)
    """Share of its claims that must come true for a kind of forecast to be heard; below it is muted, and judged on. Of
    a fault that is less likely the risk model does not warn, whatever a rule asks for."""
    worker: bool = True
    """Whether models run in a process of their own, so that an XID never waits for one."""
    engine: ForecastEngine = ForecastEngine.LOCAL
    """`local`: the worker process of the brain. `ray`: actors of a Ray cluster, which cells of a fleet may share."""
    ray_address: str = ""
    """HOST:PORT of the Ray cluster's head; empty: Ray is started on this machine with as many workers as shards."""
    ray_shards: int = Field(default=2, ge=1, le=256)
    """Actors that share the forecasts of this brain, one processor each."""
    models: Path = Path("var/brain/models")
    """Folder of trained models; see `tocsin models`."""
    alarm_share: float = Field(default=0.001, gt=0, lt=1)
    """Share of the quiet situations of its calibration in which the risk model may warn, never of less than
    `least_precision`: the budget of false alarms."""
    retrain_hours: float = Field(default=0.0, ge=0)
    """Time between two trainings on the fleet's own past; 0: never. A new model serves only if it wins its trial."""
    retrain_days: float = Field(default=90.0, gt=0)
    """How much past such a training learns from."""
    retrain_model: str = "hazard"
    """Family of scorers that is trained."""
    warm_days: float = Field(default=7.0, gt=0)
    """How much past the risk model reads at a first start; later it goes on from where it was."""

    @model_validator(mode="after")
    def _ray_outside_the_brain(self) -> Self:
        if self.engine is ForecastEngine.RAY and not self.worker:
            raise ValueError("engine ray works in the worker process; set worker = true")
        return self


class LimitSettings(Section):
    """How much may be under action at once. The strictest of the limits holds."""

    max_concurrent: int = Field(default=5, ge=0)
    """Most subjects under a disruptive action at once, in absolute number."""
    max_concurrent_ratio: float = Field(default=0.1, ge=0, le=1)
    """The same as a share of the managed GPUs; where it is less than a host, one host of several may be out."""
    max_per_host: int = Field(default=1, ge=0)
    """The same within one host."""
    max_per_rack: int = Field(default=2, ge=0)
    """The same within one rack."""
    min_available_ratio: float = Field(default=0.8, ge=0, le=1)
    """Share of a pool's GPUs that must stay healthy and free of action, but for one host of several."""
    attempts_per_day: int = Field(default=3, ge=1)
    """Most times one action is tried on one subject in 24 hours."""
    attempts_per_host_per_day: int = Field(default=6, ge=1)
    """Most disruptive actions on one host and its GPUs in 24 hours."""


class CostSettings(Section):
    """What a fault and its prevention cost; the choice between them weighs it by the chance of the fault."""

    checkpoint_interval_hours: float = Field(default=4.0, gt=0)
    """Usual time between two checkpoints of a job; half of it is lost with a GPU."""
    checkpoint_hours: float = Field(default=0.05, ge=0)
    """How long a job stands to write a checkpoint."""
    restart_hours: float = Field(default=0.25, ge=0)
    """How long it takes until a job runs again."""
    fault_gpu_hours: float = Field(default=4.0, ge=0)
    """What an unforeseen fault costs beside its job, in GPU-hours."""
    idle_gpu_hours: float = Field(default=2.0, ge=0)
    """What it costs to keep a GPU out of use for the horizon, in GPU-hours."""


class MaintenanceWindow(Section):
    """A daily span, UTC, in which disruptive actions may run."""

    start: str = Field(default="00:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    """Start, HH:MM."""
    end: str = Field(default="23:59", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    """End, HH:MM; earlier than the start spans midnight."""


class ActionSettings(Section):
    """Decisions, guards and executors."""

    mode: Mode = Mode.OBSERVE
    """The furthest that any rule may go: `observe`, `propose` or `act`."""
    executors: list[str] = Field(default_factory=lambda: ["journal_only"], min_length=1)
    """What carries out actions, in order: the first that can carry one out gets it (docs/executors.md)."""
    pool_executors: dict[str, list[str]] = Field(default_factory=dict)
    """The same for single pools, such as `{ hpc = ["slurm"] }`, in place of `executors`."""
    dry_run: bool = False
    """Every executor goes through all but its last call and says what it would have done; nothing is changed
    anywhere. `kubernetes`, `slurm`, `aws` and `node` have a `dry_run` of their own."""
    managed_label: str = "tocsin.io/managed"
    """GPUs act only where this label is `true`; nothing is managed by default."""
    managed_pools: list[str] = Field(default_factory=list)
    """Pools whose GPUs are managed without the label."""
    opt_out_label: str = "tocsin.io/opt-out"
    """GPUs with this label set to `true` are left alone, also in a managed pool."""
    elastic_pools: list[str] = Field(default_factory=list)
    """Pools that may scale out on load alone, without waiting work."""
    confirmations: int = Field(default=3, ge=1)
    """Consecutive evaluations that must agree before anything but a notification runs."""
    lease_file: Path | None = None
    """File whose lock makes a brain the active one, for brains that share a volume; `kubernetes.lease` goes before."""
    boot_grace_seconds: float = Field(default=300.0, ge=0)
    """How long the brain only watches after its start; what it saw on standby right before counts."""
    fresh_seconds: float = Field(default=120.0, gt=0)
    """Age of the newest reading beyond which no action is taken on a subject."""
    newcomer_seconds: float = Field(default=600.0, ge=0)
    """How long a GPU is seen before it counts in shares, unless a manager knows its host. Those of a new site count."""
    unshown_gpus_per_host: int = Field(default=8, ge=1)
    """How many GPUs of a host count at most where neither manager nor `topology.file` shows them; more where most other
    hosts have more."""
    cooldown_seconds: float = Field(default=1800.0, ge=0)
    """Rest between two actions of one kind on one subject."""
    hold_off_seconds: float = Field(default=14_400.0, ge=0)
    """How long a subject is left alone after a person undid or rejected an action on it."""
    time_box_seconds: float = Field(default=3600.0, gt=0)
    """How long the first decision about a cause may wait before it expires; those that follow wait longer."""
    execution_seconds: float = Field(default=7200.0, gt=0)
    """How long an execution that goes on, such as a drain, may take before it counts as failed."""
    settle_seconds: float = Field(default=120.0, ge=0)
    """Time between an action and its post-check."""
    goal_seconds: float = Field(default=900.0, ge=0)
    """How long beyond that an action's goal may take: heat needs minutes to go, a node to arrive."""
    escalate_after: int = Field(default=2, ge=1)
    """Executions of one action on one subject without effect, within 24 hours, after which the next rung is tried."""
    earn_cases: int = Field(default=20, ge=20, le=100)
    """Least number of settled cases before a rule in mode `act` acts without approval (docs/guards.md)."""
    earn_precision: float = Field(default=0.85, ge=0, le=1)
    """Share of right statements that these cases must prove, by the lower end of a 95 % interval."""
    earn_goal_share: float = Field(default=0.8, ge=0, le=1)
    """The same of goals that were reached."""
    earn_waived: list[str] = Field(default_factory=list)
    """Rules that may act without a record; `*` is all of them."""
    cost: CostSettings = Field(default_factory=CostSettings)
    """Prices for the choice of what to do about a fault that is only expected."""
    breaker_root_causes: int = Field(default=3, ge=1)
    """Distinct root causes that led to disruptive decisions within the breaker's window and trip it."""
    breaker_window_seconds: float = Field(default=3600.0, gt=0)
    """The breaker's window."""
    maintenance: list[MaintenanceWindow] = Field(default_factory=list)
    """Windows in which disruptive actions may run; empty means at any time."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """How much may be under action at once."""


class WebhookSettings(Section):
    """Where notifications, and the actions of executor `webhook`, are sent."""

    url: SecretStr = SecretStr("")
    """Receiver; empty sends nothing. Who knows the URL of a chat room may post there, so it is a secret."""
    secret: SecretStr = SecretStr("")
    """Key of the HMAC-SHA256 signature."""
    format: Literal["cloudevents", "slack"] = "cloudevents"
    """CloudEvents JSON, or a Slack-compatible text."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request may take."""
    attempts: int = Field(default=5, ge=1)
    """Tries before a delivery counts as failed."""


class DashboardSettings(Section):
    """The Streamlit dashboard."""

    listen: ListenAddress = "127.0.0.1:8501"
    """Address of the dashboard; port 0 takes a free one."""
    api_url: HttpUrl = "http://127.0.0.1:8470"
    """The brain's API."""
    api_token: SecretStr = SecretStr("")
    """Token sent to the API."""
    api_ca: Path | None = None
    """CA file for the API's certificate; unset: those of the system."""


class LogSettings(Section):
    """Tocsin's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is written."""
    format: Literal["json", "console"] = "console"
    """One JSON object a line, or text for people."""


class TopologySettings(Section):
    """Which place holds which: racks, power and cooling zones, NVLink domains (docs/topology.md)."""

    file: Path | None = None
    """CSV file of the site with the places of hosts and GPUs; unset: what drivers, labels and Slurm say."""


class Settings(Section):
    """All of it."""

    agent: AgentSettings = Field(default_factory=AgentSettings)
    simulation: SimulationSettings = Field(default_factory=SimulationSettings)
    otlp: OtlpSettings = Field(default_factory=OtlpSettings)
    redfish: RedfishSettings = Field(default_factory=RedfishSettings)
    promql: PromqlSettings = Field(default_factory=PromqlSettings)
    alertmanager: AlertmanagerSettings = Field(default_factory=AlertmanagerSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    journal: JournalSettings = Field(default_factory=JournalSettings)
    at_rest: AtRestSettings = Field(default_factory=AtRestSettings)
    cell: CellSettings = Field(default_factory=CellSettings)
    api: ApiSettings = Field(default_factory=ApiSettings)
    rules: RulesSettings = Field(default_factory=RulesSettings)
    topology: TopologySettings = Field(default_factory=TopologySettings)
    fragmentation: FragmentationSettings = Field(default_factory=FragmentationSettings)
    forecast: ForecastSettings = Field(default_factory=ForecastSettings)
    actions: ActionSettings = Field(default_factory=ActionSettings)
    planning: PlanningSettings = Field(default_factory=PlanningSettings)
    prices: PriceSettings = Field(default_factory=PriceSettings)
    usage: UsageSettings = Field(default_factory=UsageSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    node: NodeSettings = Field(default_factory=NodeSettings)
    notify: NotifySettings = Field(default_factory=NotifySettings)
    grafana: GrafanaSettings = Field(default_factory=GrafanaSettings)
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    slurm: SlurmSettings = Field(default_factory=SlurmSettings)
    cloud: CloudSettings = Field(default_factory=CloudSettings)
    scale_webhook: ScaleWebhookSettings = Field(default_factory=ScaleWebhookSettings)
    aws: AwsSettings = Field(default_factory=AwsSettings)
    dashboard: DashboardSettings = Field(default_factory=DashboardSettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @model_validator(mode="after")
    def _buttons_lead_somewhere(self) -> Self:
        for channel in self.notify.channels:
            if channel.buttons and not self.api.slack.key:
                field, remedy = f"notify.channels.{channel.name}.buttons", "set it, with the people who may press them"
                raise InputError(field, True, "needs api.slack.signing_secret", remedy)
        return self

    @property
    def names_brain(self) -> bool:
        """Whether these settings are about a brain, by its address or by who may speak with it; where they say no
        address, `brain_url` is the usual place."""
        return bool(self.dashboard.model_fields_set or self.api.model_fields_set)

    @property
    def brain_url(self) -> str:
        """The brain that is asked: `dashboard.api_url` where it is set, else the one that these settings start."""
        host, port = split_address(self.api.listen, "api.listen")
        if "api_url" in self.dashboard.model_fields_set or "listen" not in self.api.model_fields_set or not port:
            return self.dashboard.api_url
        scheme = "http" if self.api.tls_certificate is None else "https"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # where it listens on all
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
