"""What a policy can be trained in."""

from engine.rollout.environments.interface import Environment
from engine.rollout.environments.python_math import PythonMathEnvironment
from engine.spec.run import RunSpec


def environment_for(spec: RunSpec) -> Environment:
    """The environment that the spec names, over the spec's dataset."""
    match spec.environment.id:
        case "python-math":
            return PythonMathEnvironment(spec.environment, spec.dataset)
