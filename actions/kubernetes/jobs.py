"""Which job a pod belongs to: pods of one job run in step, so that what slows one of them slows all.

A job is known by the label that its operator puts on every pod of it, and where there is none, by the pod's controller.
A label stands for the whole chain of owners above the pod: a JobSet hands its name down to the pods of its Jobs, a
TrainJob is a JobSet, and so on; the chain itself is never asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.kubernetes.objects import Pod

OWN_LABEL = "tocsin.io/job"
"""Label with which a site names its jobs itself; it goes before all others."""
LABELS: tuple[tuple[str, str], ...] = (
    (OWN_LABEL, "job"),
    ("jobset.sigs.k8s.io/jobset-name", "jobset"),
    ("training.kubeflow.org/job-name", "trainingjob"),
    ("volcano.sh/job-name", "volcanojob"),
    ("ray.io/cluster", "raycluster"),
    ("scheduling.x-k8s.io/pod-group", "podgroup"),
    ("kueue.x-k8s.io/pod-group-name", "podgroup"),
    ("batch.kubernetes.io/job-name", "job"),
    ("job-name", "job"),
)
"""Labels whose value names a job within its namespace, the widest first: pods of a JobSet carry that of their Job too.

Sources: the well-known labels of kubernetes.io (``batch.kubernetes.io/job-name``, ``job-name`` before 1.27), and those
that JobSet, the training operator of Kubeflow, Volcano, KubeRay, the coscheduling plugin and Kueue put on pods.
"""
WORKERS, WORKER_GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
"""Of a LeaderWorkerSet one group, a leader and its workers, runs in step; groups are replicas of each other."""
_CONTROLLERS = {
    ("batch", "Job"): "job",
    ("batch.volcano.sh", "Job"): "volcanojob",
    ("jobset.x-k8s.io", "JobSet"): "jobset",
    ("ray.io", "RayCluster"): "raycluster",
}
"""Controllers, by API group and kind, all of whose pods run in step. Replicas of a Deployment, a StatefulSet or a
DaemonSet do not."""
_TRAINING = "kubeflow.org"
"""API group of the training operator: PyTorchJob, MPIJob and the others."""


def job_of_pod(pod: Pod) -> str:
    """Name of the job, the same for all its pods, as ``namespace/kind/name``; empty for a pod that runs by itself."""
    labels = pod.labels
    for label, kind in LABELS:
        if labels.get(label):
            return f"{pod.namespace}/{kind}/{labels[label]}"
        if label == OWN_LABEL and labels.get(WORKERS):
            return f"{pod.namespace}/leaderworkerset/{labels[WORKERS]}/{labels.get(WORKER_GROUP, '')}"
    return _by_controller(pod)


def _by_controller(pod: Pod) -> str:
    owner = pod.owner
    kind, name = str(owner.get("kind", "")), str(owner.get("name", ""))
    group = str(owner.get("apiVersion", "")).rpartition("/")[0]
    found = "trainingjob" if group == _TRAINING else _CONTROLLERS.get((group, kind), "")
    return f"{pod.namespace}/{found}/{name}" if found and name else ""


def known_as(pod: Pod) -> Mapping[str, str]:
    """What a process on a GPU may know of its pod, its UID or ``namespace/name``, to its job."""
    job = job_of_pod(pod)
    return {key: job for key in (pod.uid, pod.title) if key}
