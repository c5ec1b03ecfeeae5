"""deploy/kuberay: Kubernetes would take it, and it starts what docker-compose.yml starts."""

import re
import tomllib
from copy import deepcopy
from importlib.metadata import version
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from devtools.home import ROOT
from engine.cluster.misfit import misfit
from engine.cluster.placement import GIB, Bundle, plan_for
from engine.spec.resources import Resources
from sandboxes.__main__ import parser_of
from tests.devtools.kubernetes_schema import DAEMON_SET, DEPLOYMENT, RAY_CLUSTER, SERVICE

FOLDER = ROOT / "deploy" / "kuberay"
CLUSTER: dict[str, Any] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
SANDBOXES: dict[str, Any] = yaml.safe_load((FOLDER / "sandboxes.yaml").read_text())
ADMIN, ADMIN_SERVICE = yaml.safe_load_all((FOLDER / "sandbox-admin.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
HEAD = CLUSTER["spec"]["headGroupSpec"]
GROUPS: dict[str, dict[str, Any]] = {group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]}
PODS: dict[str, dict[str, Any]] = {
    "head": HEAD["template"]["spec"],
    **{name: group["template"]["spec"] for name, group in GROUPS.items()},
    "sandboxes": SANDBOXES["spec"]["template"]["spec"],
    "admin": ADMIN["spec"]["template"]["spec"],
}
WITH_SANDBOXES = ("head", "rollouts", "sandboxes")
MEANT_FOR = {"head": "ray-head", "trainer": "megatron", "generator": "megatron", "rollouts": "ray-head"} | {
    "sandboxes": "sandboxes",
    "admin": "sandboxes",
}
"""The service of compose that each is of a kind with."""


def container(name: str) -> dict[str, Any]:
    (only,) = PODS[name]["containers"]
    return dict(only)


def test_kubernetes_takes_every_field_of_them() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {"cluster.yaml", "sandboxes.yaml", "sandbox-admin.yaml"}
    Draft202012Validator(RAY_CLUSTER).validate(CLUSTER)
    Draft202012Validator(DAEMON_SET).validate(SANDBOXES)
    Draft202012Validator(DEPLOYMENT).validate(ADMIN)
    Draft202012Validator(SERVICE).validate(ADMIN_SERVICE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "workerGroupSpecs", 0, "rayStartParams", "num-cpus"], 0),
        (["spec", "workerGroupSpecs", 0, "replica"], 1),
        (["spec", "headGroupSpec", "template", "spec", "containers", 0, "image"], None),
        (["spec", "headGroupSpec", "template", "spec", "containers", 0, "resources", "limits", "memory"], "16 GB"),
        (["spec", "headGroupSpec", "template", "spec", "hostUser"], False),
    ],
)
def test_a_slip_of_the_pen_is_found(path: list[Any], value: Any) -> None:
    wrong = deepcopy(CLUSTER)
    table = wrong
    for part in path[:-1]:
        table = table[part]
    table[path[-1]] = value
    with pytest.raises(ValidationError):
        Draft202012Validator(RAY_CLUSTER).validate(wrong)


@pytest.mark.parametrize("name", sorted(PODS))
def test_images_and_users_are_those_of_compose(name: str) -> None:
    service = SERVICES[MEANT_FOR[name]]
    assert container(name)["image"] == service["image"]
    user = PODS[name]["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == service["user"]


def test_the_head_is_started_as_compose_starts_it() -> None:
    """KubeRay makes the command of rayStartParams; ``--head`` and ``--block`` are its own, ``--num-cpus`` is ours."""
    given = dict(word.removeprefix("--").partition("=")[::2] for word in SERVICES["ray-head"]["command"][2:])
    ours = {name: value or "true" for name, value in given.items() if name not in ("head", "block")}
    assert HEAD["rayStartParams"] == ours | {"num-cpus": "0"}
    ports = {port["name"]: str(port["containerPort"]) for port in container("head")["ports"]}
    assert ports == {"gcs": ours["port"], "dashboard": ours["dashboard-port"]}
    assert container("head")["readinessProbe"]["exec"]["command"] == SERVICES["ray-head"]["healthcheck"]["test"][1:]


def test_other_nodes_join_it_as_compose_lets_them() -> None:
    words = {word.removeprefix("--") for word in SERVICES["megatron"]["command"][2:]}
    assert words == {"address=ray-head:6379", "num-cpus=0", "block", "disable-usage-stats"}
    assert all(group["rayStartParams"]["disable-usage-stats"] == "true" for group in GROUPS.values())


def test_the_sandbox_service_has_the_command_and_the_port_of_compose() -> None:
    service, only = SERVICES["sandboxes"], container("sandboxes")
    assert only["command"] == service["command"]
    assert str(only["ports"][0]["containerPort"]) in service["command"]
    assert f":{only['readinessProbe']['httpGet']['port']}/healthz" in service["healthcheck"]["test"][-1]
    assert "envFrom" not in only  # it knows no secret of anybody


@pytest.mark.parametrize("name", sorted(PODS))
def test_pods_get_the_engines_secret_or_none(name: str) -> None:
    files = {".env.engine": {"secretRef": {"name": "palestra-engine"}}}
    assert container(name).get("envFrom", []) == [files[file] for file in SERVICES[MEANT_FOR[name]]["env_file"]]
    variables = {variable["name"] for variable in container(name).get("env", ())}
    assert variables == ({"NODE_NAME", "POD_IP"} if name == "sandboxes" else set())


def test_hosts_register_with_the_admin_where_it_is_and_by_the_token_that_they_have() -> None:
    host, admin = container("sandboxes"), container("admin")
    asked = parser_of().parse_args([*host["command"][3:], *host["args"]])
    (port,) = ADMIN_SERVICE["spec"]["ports"]
    assert asked.admin == f"http://{ADMIN_SERVICE['metadata']['name']}:{port['port']}"
    assert ADMIN_SERVICE["spec"]["selector"] == ADMIN["spec"]["template"]["metadata"]["labels"]
    assert {variable["name"] for variable in host["env"]} == {"NODE_NAME", "POD_IP"}
    assert (asked.name, asked.advertise) == ("$(NODE_NAME)", "$(POD_IP)")
    assert str(asked.admin_token_file.parent) in {mount["mountPath"] for mount in host["volumeMounts"]}
    serves = parser_of().parse_args([*admin["command"][3:], *admin["args"]])
    assert (serves.port, admin["ports"][0]["containerPort"]) == (port["port"], port["port"])
    mounted = {mount["mountPath"] for mount in admin["volumeMounts"]}
    assert {str(serves.tokens.parent), str(serves.hosts_file.parent)} < mounted
    assert ADMIN["spec"]["replicas"] == 1, "the queue is in its memory"


@pytest.mark.parametrize("name", sorted(PODS))
def test_only_pods_with_sandboxes_are_unconfined_and_those_in_a_user_namespace(name: str) -> None:
    pod, security = PODS[name], container(name)["securityContext"]
    is_unconfined = security["seccompProfile"]["type"] == "Unconfined"
    assert is_unconfined == (name in WITH_SANDBOXES)
    assert (security.get("procMount") == "Unmasked") == is_unconfined
    assert pod.get("hostUsers", True) == (not is_unconfined)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert pod["automountServiceAccountToken"] is False


def test_rollout_workers_that_reserve_processors_come_only_where_sandboxes_can_be_made() -> None:
    """Ray counts processors: nodes with GPUs, and the head, say that they have none."""
    with_processors = {name for name, group in GROUPS.items() if group["rayStartParams"].get("num-cpus") != "0"}
    assert with_processors == {"rollouts"}
    assert with_processors < set(WITH_SANDBOXES)


def test_the_example_of_the_guide_fits_its_nodes() -> None:
    (example, *_) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "scale.md").read_text(), re.DOTALL)
    asked = plan_for(Resources.model_validate(tomllib.loads(example)["resources"]))
    assert (
        misfit(asked, [node for name, group in GROUPS.items() for node in [bundle_of(name)] * group["replicas"]])
        is None
    )


def bundle_of(name: str) -> Bundle:
    """What Ray knows of a node of the group."""
    limits = container(name)["resources"]["limits"]
    cpus = GROUPS[name]["rayStartParams"].get("num-cpus", limits["cpu"])
    gibibytes = int(limits["memory"].removesuffix("Gi"))
    return Bundle(int(limits.get("nvidia.com/gpu", 0)), float(cpus), gibibytes * GIB)


def test_all_of_them_run_rays_version_and_see_the_same_folders() -> None:
    assert CLUSTER["spec"]["rayVersion"] == version("ray")
    runs = [volume for volume in SERVICES["ray-head"]["volumes"] if volume.endswith("/runs")]
    for name in ("head", *GROUPS):
        mounted = {f"{mount['name']}:{mount['mountPath']}" for mount in container(name)["volumeMounts"]}
        assert set(runs) <= mounted
        assert {mount["name"] for mount in container(name)["volumeMounts"]} == {
            volume["name"] for volume in PODS[name]["volumes"]
        }
