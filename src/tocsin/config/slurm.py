"""Settings of executor ``slurm`` (docs/slurm.md)."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section

_REST_URL = re.compile(r"unix:/[^\s?#]+|https?://[^\s/@?#]+/?")


class SlurmHealthSettings(Section):
    """What `tocsin slurm-health`, Slurm's `HealthCheckProgram`, may do (docs/slurm.md)."""

    drain: bool = False
    """Whether a node whose verdict is `act now` drains itself; only with `actions.mode = "act"` as well."""
    drain_blind: bool = False
    """Whether the same goes for a node on which nothing can be seen."""
    max_share: float = Field(default=0.05, gt=0, le=1)
    """Share of the nodes of its partitions that may be out of service with it; one node always may."""
    seconds: float = Field(default=40.0, ge=5, le=55)
    """How long all of it may take; Slurm kills the program after 60 s."""


class SlurmSettings(Section):
    """The Slurm cluster that executor `slurm` acts on."""

    command: list[str] = Field(default_factory=list)
    """Words before every Slurm command, such as `["ssh", "slurm-login"]`; empty runs it here."""
    remote_shell: bool = False
    """Whether `command` hands what follows to a shell, so that it must be quoted; with `ssh` it always is."""
    conf: Path | None = None
    """Value of `SLURM_CONF`, where commands run here; default: the environment's."""
    rest_url: str = ""
    """slurmrestd, as `unix:/run/slurmrestd/slurmrestd.socket` or `https://slurm-rest:6820`; what it serves is asked of
    it, the rest is done by commands. Empty: commands alone."""
    rest_user: str = ""
    """User of the token; empty: that of the token itself, or of the unix socket."""
    rest_token: SecretStr = SecretStr("")
    """JSON Web Token, as `scontrol token` prints it; better `rest_token_file`."""
    rest_token_file: Path | None = None
    """File of that token, read again for each request, so that it can be renewed."""
    rest_ca: Path | None = None
    """CA file for slurmrestd's certificate; unset: those of the system."""
    command_seconds: float = Field(default=10.0, gt=0)
    """How long one command, or one request to slurmrestd, may take."""
    ping_seconds: float = Field(default=3.0, gt=0)
    """How long `scontrol ping`, which is asked before anything else, may take."""
    snapshot_seconds: float = Field(default=5.0, ge=0)
    """Age up to which the list of nodes and jobs is used again where nothing is changed by it."""
    topology_seconds: float = Field(default=600.0, ge=0)
    """Age up to which what `scontrol show topology` said is used again; 0 never asks."""
    blocks: Literal["nvlink_domain", "rack", "none"] = "nvlink_domain"
    """What a block of `topology/block` is; what the driver says of NVLink domains counts more."""
    hosts: dict[str, str] = Field(default_factory=dict)
    """Slurm's name of a node by Tocsin's name of the host, where they differ."""
    host_suffix: str = ""
    """What Tocsin's host names have behind Slurm's node names, such as `.example.org`."""
    partitions: dict[str, str] = Field(default_factory=dict)
    """Partition by pool; pools named here can be scaled by powering cloud nodes up and down."""
    cloud_nodes: dict[str, str] = Field(default_factory=dict)
    """Cloud nodes by pool, as a host list such as `gpu-[1-8]`; needed where `PrivateData` has no `cloud`."""
    max_power_up: int = Field(default=4, ge=1)
    """Most nodes that one decision powers up."""
    drain_jobs: Literal["wait", "requeue"] = "wait"
    """What a drain does about running jobs: `wait` until they end, or checkpoint and `requeue` them."""
    opt_in_comment: str = "tocsin-checkpoint"
    """Only jobs with this word in their comment are asked to checkpoint; empty: all. A program without a handler dies
    of the signal."""
    checkpoint_signal: str = Field(default="USR1", pattern=r"^[A-Z0-9]{1,10}$")
    """Signal that tells a job to checkpoint."""
    checkpoint_to: Literal["batch", "steps", "all"] = "batch"
    """Who gets it: the batch script, the job steps, or both."""
    checkpoint_wait_seconds: float = Field(default=60.0, ge=0)
    """How long a job may take to checkpoint; where `deadline_ms` of a notice comes sooner, that."""
    checkpoint_proof: Literal["time", "comment", "file"] = "time"
    """What shows that it did: that much time, `checkpointed=SECONDS` in the job's comment, or `checkpoint_file`."""
    checkpoint_file: str = "%w/checkpoint.done"
    """File that a job renews when it has checkpointed: `%w` its working folder, `%j` its number, `%u` its user."""
    without_proof: Literal["leave", "requeue"] = "leave"
    """What is done about a job that gave no proof in time."""
    requeue_held: bool = False
    """Whether requeued jobs are held until the node is resumed or a person releases them."""
    allow_reboot: bool = False
    """Whether nodes may be rebooted, with the cluster's `RebootProgram`."""
    show_faults: bool = False
    """Whether open faults of GPUs are shown in the comment of their nodes, in every mode and whatever the executors."""
    health: SlurmHealthSettings = Field(default_factory=SlurmHealthSettings)
    dry_run: bool = False
    """Look at the cluster and say what would be run, without running it."""

    @model_validator(mode="after")
    def _rest_is_whole(self) -> Self:
        url, token = self.rest_url, bool(self.rest_token.get_secret_value() or self.rest_token_file)
        if self.rest_token.get_secret_value() and self.rest_token_file:
            raise ValueError("rest_token and rest_token_file: give one of them")
        if url and not _REST_URL.fullmatch(url):
            raise ValueError(f"rest_url: {url!r} must be unix:/PATH, https://HOST:PORT or http://HOST:PORT")
        if token and url.startswith("http://") and not _is_loopback(url):
            raise ValueError(f"rest_url: a token is never sent without TLS: write {url!r} with https://")
        return self


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
