"""Settings of what is done in a Kubernetes cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tocsin.config.section import Section

_QUALIFIED = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
"""Name of a label or a taint, as the API server checks it."""


_KUBELET = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
"""Conditions of the kubelet, which writes them again at once, and of the cloud's network controller."""


class KubernetesWorkload(Section):
    """What is scaled where a pool needs more or less."""

    target: str
    """`namespace/kind/name`; the kind is `deployment`, `statefulset`, `replicaset` or, of another API,
    `plural.version.group`."""
    min_replicas: int = Field(default=1, ge=0)
    """Fewest replicas that Tocsin leaves."""
    max_replicas: int = Field(default=10, ge=1)
    """Most replicas that Tocsin asks for."""
    step: int = Field(default=1, ge=1)
    """Replicas added or taken where a decision does not say how many there shall be."""

    @field_validator("target")
    @classmethod
    def _three_parts(cls, value: str) -> str:
        parts = value.split("/")
        if len(parts) != 3 or not all(parts):
            raise ValueError("write namespace/kind/name, such as serving/deployment/llm")
        if parts[1].lower() not in {"deployment", "statefulset", "replicaset"} and parts[1].count(".") < 2:
            raise ValueError("the kind is deployment, statefulset, replicaset or plural.version.group")
        return value

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("min_replicas must not exceed max_replicas")
        return self


class KubernetesSettings(Section):
    """Executor `kubernetes`, and the lease of the single active brain."""

    kubeconfig: Path | None = None
    """Kubeconfig file; unset: the pod's service account, outside a cluster `$KUBECONFIG` or `~/.kube/config`."""
    context: str = ""
    """Context of the kubeconfig; empty takes its current one."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request may take."""
    patience_seconds: float = Field(default=120.0, ge=0)
    """How long an action goes on asking an API server that does not answer or is overloaded."""
    dry_run: bool = False
    """Whether every write is only tried (`dryRun=All`): the server checks it and stores nothing."""
    fault_taint: str = ""
    """Key of a `NoSchedule` taint that goes with a cordon, such as `tocsin.io/fault`; empty: none."""
    node_condition: str = "TocsinGpuHealthy"
    """Node condition that says whether Tocsin took the node out of service; empty: none."""
    repair_condition: str = ""
    """Node condition that the cluster's provider repairs on, such as `AcceleratedHardwareReady` of Karpenter on EKS:
    `False` once a rule has drained a node for broken hardware, gone with the uncordon; empty: none."""
    show_faults: bool = False
    """Whether open faults of GPUs are shown at their nodes, as condition `TocsinGpuFault` and as Events, in every mode
    and whatever the executors."""
    read_conditions: bool = False
    """Whether conditions that other tools keep at the nodes (node-problem-detector, AKS, the EKS agent, NVSentinel) are
    read as evidence."""
    device_rules: Literal["", "NoSchedule", "NoExecute"] = ""
    """How `cordon_gpu` takes a single GPU out of a cluster whose pods hold GPUs by ResourceClaims (DRA), by a
    DeviceTaintRule: `NoSchedule` keeps new claims off it, `NoExecute` deletes the pods that hold it as well, once no
    disruption budget speaks against that; empty: that action is left to other executors."""
    device_taint: str = "tocsin.io/fault"
    """Key of the taint in those rules, which claims that shall have the GPU all the same tolerate."""
    device_rule_seconds: float = Field(default=30.0, gt=0)
    """How long the cluster may take to show that it follows such a rule, before new work is steered off the whole node
    instead."""
    avoid_with: Literal["taint", "label"] = "taint"
    """How new work is steered elsewhere: a `PreferNoSchedule` taint, or a label, `tocsin.io/avoid`."""
    avoid_seconds: float = Field(default=21_600.0, gt=0)
    """How long that mark stays."""
    drain_seconds: float = Field(default=1800.0, gt=0)
    """How long a drain or a migration may take before it ends as failed."""
    grace_seconds: int | None = Field(default=None, ge=0)
    """Grace period of evicted pods; unset: each pod's own."""
    evict_local_data: bool = False
    """Whether pods that lose files in an `emptyDir` volume are evicted too."""
    evict_bare_pods: bool = False
    """Whether pods that no controller makes anew are evicted too."""
    delete_blocked_pods: bool = False
    """Whether pods that a disruption budget still protects at the end of `drain_seconds` are deleted against it."""
    checkpoint_seconds: float = Field(default=300.0, ge=0)
    """How long a pod that takes checkpoints on request is waited for before it is evicted; 0 does not ask."""
    mig_seconds: float = Field(default=1800.0, gt=0)
    """How long mig-manager may take to repartition a node."""
    team_label: str = Field(default="team", max_length=317, pattern=_QUALIFIED)
    """Label of pods that names the team that their GPU time is put down to (docs/usage.md)."""
    workloads: dict[str, KubernetesWorkload] = Field(default_factory=dict)
    """What is scaled by pool, such as `{ inference = "serving/deployment/llm" }`."""
    autoscaled: Literal["leave", "raise_minimum"] = "leave"
    """What to do where an autoscaler (HPA, KEDA) owns the replicas: leave it to that one and say so, or move its
    minimum within its maximum."""
    pod: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")
    """Pod `namespace/name` of this very brain, which labels it `tocsin.io/brain` as `active` or `standby`, so that a
    Service finds the active one of several; empty: no label."""
    lease: str = ""
    """Lease `namespace/name` that one brain holds to be the active one; empty: none is asked for."""
    lease_seconds: float = Field(default=15.0, ge=3)
    """Time after its last renewal at which another brain takes the lease over, and up to a fifth more until it has seen
    that; 4 for a change within 5 s."""

    @field_validator("workloads", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {pool: {"target": one} if isinstance(one, str) else one for pool, one in value.items()}

    @field_validator("fault_taint")
    @classmethod
    def _taint_key(cls, value: str) -> str:
        if value and not re.match(_QUALIFIED, value):
            raise ValueError("write prefix/name, such as tocsin.io/fault")
        return value

    @field_validator("device_taint")
    @classmethod
    def _device_taint_key(cls, value: str) -> str:
        if not re.match(_QUALIFIED, value):
            raise ValueError("write prefix/name, such as tocsin.io/fault")
        return value

    @field_validator("repair_condition")
    @classmethod
    def _not_the_kubelets(cls, value: str) -> str:
        if value and (not re.match(_QUALIFIED, value) or value in _KUBELET):
            raise ValueError("write a condition that no kubelet keeps, such as AcceleratedHardwareReady")
        return value

    @field_validator("lease")
    @classmethod
    def _lease_name(cls, value: str) -> str:
        if value and (value.count("/") != 1 or not all(value.split("/"))):
            raise ValueError("write namespace/name, such as tocsin/brain")
        return value
