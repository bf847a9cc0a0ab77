"""The resources of deploy/kubernetes are what Kubernetes and the Prometheus operator take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.typescript import Types
from tests.tools import can_use, needs
from tests.unit.deploy.manifests import KUBERNETES, Resource, kustomized, kustomized_example

pytestmark = [pytest.mark.contract, can_use("kubectl"), needs("node", "npm")]

Refused = Callable[[dict[str, Any]], dict[str, str]]


@pytest.fixture(scope="module")
def refused() -> Refused:
    """What TypeScript says against each of some resources."""
    return Types(Path(__file__).with_name("kubernetes_schema"), "resource").refused


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Resource]:
    """Every resource by what it stands in, its kind and its name."""
    built = {
        "base": kustomized(KUBERNETES),
        "canary": kustomized(KUBERNETES / "canary"),
        "example": kustomized_example(tmp_path_factory.mktemp("own")),
    }
    return {
        f"{where}-{each['kind']}-{each['metadata']['name']}": each
        for where, each_of in built.items()
        for each in each_of
    }


def broken(resource: Resource, path: str, value: object) -> Resource:
    changed = copy.deepcopy(resource)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place: Any = changed
    for parent in parents:
        place = place[parent]
    place[last] = value
    return changed


def test_the_types_take_every_resource(refused: Refused, resources: dict[str, Resource]) -> None:
    kinds = {each["kind"] for each in resources.values()}
    assert kinds == {
        *("ConfigMap", "Deployment", "NetworkPolicy"),
        *("PodMonitor", "PrometheusRule", "ServiceMonitor"),
    }
    assert refused(resources) == {}


def test_the_types_refuse_what_is_wrong_in_a_resource(
    refused: Refused, resources: dict[str, Resource]
) -> None:
    deployment = resources["canary-Deployment-moriio-canary"]
    policy = resources["canary-NetworkPolicy-moriio-canary"]
    pods = resources["base-PodMonitor-vllm"]
    services = resources["example-ServiceMonitor-vllm"]
    rules = resources["base-PrometheusRule-moriio-observed"]
    dashboard = resources["base-ConfigMap-moriio-fleet"]
    container = "spec/template/spec/containers/0"
    wrong = {
        "a_misspelt_right": broken(deployment, f"{container}/securityContext/readOnlyRoot", True),
        "a_number_as_a_text": broken(deployment, f"{container}/ports/0/containerPort", "9470"),
        "an_unknown_protocol": broken(policy, "spec/egress/0/ports/0/protocol", 6),
        "a_misspelt_interval": broken(pods, "spec/podMetricsEndpoints/0/intervall", "15s"),
        "a_key_of_pods_for_services": broken(services, "spec/podMetricsEndpoints", []),
        "a_misspelt_expression": broken(rules, "spec/groups/0/rules/0/expression", "up"),
        "a_label_that_is_a_number": broken(dashboard, "metadata/labels/grafana_dashboard", 1),
        "an_unknown_version": broken(pods, "apiVersion", "monitoring.coreos.com/v2"),
    }
    assert set(refused(wrong)) == set(wrong)
