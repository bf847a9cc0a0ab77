"""The Kubernetes examples, as kubectl builds them and the API's schemas have them."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from moriio_observed import __version__
from moriio_observed.cli import canary
from tests.tools import can_use
from tests.unit.deploy.manifests import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    Resource,
    kustomized,
    kustomized_example,
    only,
)

pytestmark = can_use("kubectl")


@pytest.fixture(scope="module")
def base() -> list[Resource]:
    return kustomized(KUBERNETES)


@pytest.fixture(scope="module")
def probing() -> list[Resource]:
    return kustomized(KUBERNETES / "canary")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> list[Resource]:
    return kustomized_example(tmp_path_factory.mktemp("own"))


def test_the_base_has_scraping_rules_and_every_dashboard(base: list[Resource]) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in base}
    dashboards = {f"moriio-{path.stem}" for path in ROOT.glob("dashboards/json/*.json")}
    assert names == {
        ("PodMonitor", "vllm"),
        ("PrometheusRule", "moriio-observed"),
        *(("ConfigMap", name) for name in dashboards),
    }


def test_services_stand_in_place_of_pods_never_beside_them(own: list[Resource]) -> None:
    kinds = [each["kind"] for each in own]
    assert "ServiceMonitor" in kinds
    assert [each["metadata"]["name"] for each in own if each["kind"] == "PodMonitor"] == [
        "moriio-canary"
    ]


def test_the_example_of_the_readme_puts_its_own_in_the_place_of_ours(own: list[Resource]) -> None:
    assert {each["metadata"]["namespace"] for each in own} == {"inference"}
    monitor = only(own, "ServiceMonitor", "vllm")
    assert monitor["spec"]["selector"]["matchLabels"] == {"app": "my-vllm"}
    container = container_of(own)
    assert container["image"].startswith("registry.inference.example/")
    assert arguments_of(container).url == "http://my-router:8000"
    router = egress_of(own)[-1]
    assert router["to"][0]["podSelector"]["matchLabels"] == {"app": "my-router"}
    assert router["ports"] == [{"port": 8000, "protocol": "TCP"}]


def pod_of(resources: list[Resource]) -> Any:
    return only(resources, "Deployment", "moriio-canary")["spec"]["template"]


def container_of(resources: list[Resource]) -> Any:
    [container] = pod_of(resources)["spec"]["containers"]
    return container


def egress_of(resources: list[Resource]) -> Any:
    return only(resources, "NetworkPolicy", "moriio-canary")["spec"]["egress"]


def arguments_of(container: Any) -> argparse.Namespace:
    """What our own command reads in the container's arguments."""
    command, *words = container["args"]
    assert command == canary.NAME
    parser = argparse.ArgumentParser(exit_on_error=False)
    canary.add_arguments(parser)
    return parser.parse_args(words)


def test_the_canarys_arguments_are_those_of_our_command(probing: list[Resource]) -> None:
    container = container_of(probing)
    arguments = arguments_of(container)
    assert (arguments.action, arguments.once) == ("run", False)
    [mount] = container["volumeMounts"]
    assert arguments.golden.parent == Path(mount["mountPath"])
    [port] = container["ports"]
    # A probe comes from the node, not from the pod itself.
    assert (arguments.host, arguments.port) == ("0.0.0.0", port["containerPort"])  # noqa: S104


def test_the_golden_answers_are_read_from_the_config_map_that_the_readme_makes(
    probing: list[Resource],
) -> None:
    [volume] = pod_of(probing)["spec"]["volumes"]
    name, file = volume["configMap"]["name"], arguments_of(container_of(probing)).golden.name
    command = rf"kubectl create configmap {name} -n \S+ --from-file={file}\n"
    for page in (DEPLOY / "README.md", KUBERNETES / "canary" / "kustomization.yaml"):
        assert re.search(command, page.read_text())


def test_a_key_for_the_servers_comes_from_a_secret_that_need_not_be_there(
    probing: list[Resource],
) -> None:
    [variable] = container_of(probing)["env"]
    assert variable["name"] == canary.API_KEY
    assert variable["valueFrom"]["secretKeyRef"]["optional"] is True


def test_the_canary_runs_as_nobody_and_can_change_nothing(probing: list[Resource]) -> None:
    pod, container = pod_of(probing)["spec"], container_of(probing)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_canary_says_what_it_needs_and_when_it_is_well(probing: list[Resource]) -> None:
    container = container_of(probing)
    assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
    assert "memory" in container["resources"]["limits"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}


def test_the_canary_may_ask_names_and_the_router_and_nothing_else(probing: list[Resource]) -> None:
    policy = only(probing, "NetworkPolicy", "moriio-canary")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels_of(pod_of(probing)).items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    names, router = policy["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    url = arguments_of(container_of(probing)).url
    assert [f":{port['port']}" for port in router["ports"]] == [re.search(r":\d+$", url)[0]]


def test_prometheus_may_scrape_the_canary_at_the_port_that_its_monitor_names(
    probing: list[Resource],
) -> None:
    monitor = only(probing, "PodMonitor", "moriio-canary")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels_of(pod_of(probing)).items()
    assert monitor["jobLabel"] in labels_of(pod_of(probing))
    [endpoint] = monitor["podMetricsEndpoints"]
    [port] = container_of(probing)["ports"]
    [ingress] = only(probing, "NetworkPolicy", "moriio-canary")["spec"]["ingress"]
    assert endpoint["port"] == port["name"]
    assert ingress["ports"] == [{"port": port["name"], "protocol": "TCP"}]


def test_the_monitors_have_the_label_by_which_the_operator_takes_the_rules(
    base: list[Resource], probing: list[Resource]
) -> None:
    release = only(base, "PrometheusRule", "moriio-observed")["metadata"]["labels"]["release"]
    monitors = [each for each in [*base, *probing] if each["kind"] == "PodMonitor"]
    assert len(monitors) == 2
    assert {labels_of(monitor)["release"] for monitor in monitors} == {release}


def test_the_image_is_one_that_the_readme_builds_of_our_dockerfile(
    probing: list[Resource],
) -> None:
    dockerfile = (DEPLOY / "canary" / "Dockerfile").read_text()
    image = container_of(probing)["image"]
    assert image.endswith(f":{__version__}")
    built = f"docker build -f deploy/canary/Dockerfile -t {image} ."
    assert built in (DEPLOY / "README.md").read_text()
    assert built in dockerfile
    user = pod_of(probing)["spec"]["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in dockerfile
    assert "'/src[canary]'" in dockerfile
    assert dockerfile.endswith('ENTRYPOINT ["/opt/canary/bin/moriio-observed"]\n')


def labels_of(resource: Any) -> dict[str, str]:
    labels: dict[str, str] = resource["metadata"]["labels"]
    return labels
