"""The shipped manifest grants exactly what the code says it needs, and nothing that it calls is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tocsin.actions.kubernetes.rights import FEATURES, Right, needed
from tocsin.config.kubernetes import KubernetesSettings

MANIFEST = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"


def _documents() -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(MANIFEST.read_text()) if document]


def test_every_feature_is_one_role_with_exactly_its_rights() -> None:
    roles = {
        document["metadata"]["name"]: {
            Right(group, resource, verb)
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for document in _documents()
        if document["kind"] == "ClusterRole"
    }
    assert roles == {f"tocsin-{feature}": set(rights) for feature, rights in FEATURES.items()}


def test_bindings_name_roles_and_the_account_that_are_there() -> None:
    names = {(document["kind"], document["metadata"]["name"]) for document in _documents()}
    bindings = [document for document in _documents() if document["kind"].endswith("Binding")]
    assert bindings
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in names
        assert all((subject["kind"], subject["name"]) in names for subject in binding["subjects"])


def test_only_the_features_that_are_turned_on_are_needed() -> None:
    plain = needed(KubernetesSettings())
    assert {need.right for need in plain} == {*FEATURES["nodes"], *FEATURES["checkpoints"]}
    bare = needed(KubernetesSettings(checkpoint_seconds=0))
    assert {need.right for need in bare} == set(FEATURES["nodes"])
    assert "patch pods" not in {str(need) for need in bare}
    shown = needed(KubernetesSettings(show_faults=True))
    assert {need.right for need in shown} - {need.right for need in plain} == {
        Right("events.k8s.io", "events", "create")
    }
    asking = needed(KubernetesSettings(), node_tokens=True)
    assert [str(need) for need in asking if need not in plain] == ["create tokenreviews.authentication.k8s.io"]
    settings = KubernetesSettings.model_validate(
        {
            "workloads": {"serve": "web/deployment/llm", "own": "web/inferenceservices.v1beta1.serving.kserve.io/llm"},
            "autoscaled": "raise_minimum",
            "delete_blocked_pods": True,
            "lease": "tocsin/brain",
        }
    )
    shown = {str(need) for need in needed(settings)}
    assert shown >= {
        "delete pods",
        "patch deployments/scale.apps in web",
        "patch inferenceservices/scale.serving.kserve.io in web",
        "patch scaledobjects.keda.sh in web",
        "update leases.coordination.k8s.io in tocsin",
    }
    assert not any("statefulsets" in each for each in shown)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workloads", {"serve": "llm"}),
        ("workloads", {"serve": "web/pod/llm"}),
        ("workloads", {"serve": {"target": "web/deployment/llm", "min_replicas": 3, "max_replicas": 2}}),
        ("lease", "brain"),
        ("fault_taint", "two words"),
        ("repair_condition", "Ready"),
    ],
)
def test_settings_that_cannot_work_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        KubernetesSettings.model_validate({field: value})
