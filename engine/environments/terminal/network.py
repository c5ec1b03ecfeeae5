"""What a phase of a task may reach: from the task's own fields to the egress policy that the gateway enforces."""

from engine.environments.terminal.task_file import NetworkMode, TaskFile
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.rule import Rule
from sandboxes.spec import SandboxSpec

PORTS = (80, 443)
"""The ports of the hosts of an allowlist."""
RULE = "task"


def mode_of(file: TaskFile, *, of_tests: bool) -> tuple[NetworkMode, tuple[str, ...]]:
    """The mode and the hosts of the tests or of the policy: its own mode and hosts, else the environment's, else no
    network."""
    phase = file.verifier if of_tests else file.agent
    if phase.network_mode is not None:
        return phase.network_mode, tuple(phase.allowed_hosts)
    return file.environment.mode or "no-network", tuple(file.environment.allowed_hosts)


def policy_of(file: TaskFile, *, of_tests: bool) -> EgressPolicy | None:
    """None where nothing may be reached.  A public network is refused before (``task_needs``)."""
    mode, hosts = mode_of(file, of_tests=of_tests)
    if mode != "allowlist":
        return None
    return EgressPolicy(name=RULE, rules=(Rule(name=RULE, action="allow", hosts=hosts, ports=PORTS),))


def spec_with_network(spec: SandboxSpec, file: TaskFile, *, of_tests: bool) -> SandboxSpec:
    """The spec of a phase's sandbox.  A phase that may reach nothing keeps what the operator chose for it."""
    policy = policy_of(file, of_tests=of_tests)
    if policy is not None:
        return spec.model_copy(update={"network": "watched", "egress": policy})
    if spec.egress is not None:
        return spec.model_copy(update={"egress": None})
    return spec
