"""From what a spec says about a verifier to the verifier itself."""

from engine.environments.verifiers.contract import Verifier
from engine.environments.verifiers.exact import ExactVerifier
from engine.environments.verifiers.function import FunctionVerifier
from engine.environments.verifiers.json_schema import SchemaVerifier
from engine.environments.verifiers.mathematics import MathVerifier
from engine.environments.verifiers.numeric import NumericVerifier
from engine.environments.verifiers.rubric import RubricVerifier
from engine.environments.verifiers.unit_tests import UnitTestVerifier
from engine.judge_endpoint import ServedJudge
from engine.spec import verifier as verifiers
from engine.spec.verifier import ExactText, JsonSchema, MathVerify, Number, PythonFunction, Rubric, UnitTests
from sandboxes.spec import SandboxSpec


def verifier_for(
    settings: verifiers.Verifier, sandbox: SandboxSpec, served_judge: ServedJudge | None = None
) -> Verifier:
    """``sandbox`` is what one that runs code may use.  Raises ``UnusableVerifier``."""
    match settings:
        case ExactText():
            return ExactVerifier(settings)
        case Number():
            return NumericVerifier(settings)
        case JsonSchema():
            return SchemaVerifier(settings)
        case UnitTests():
            return UnitTestVerifier(settings, sandbox)
        case MathVerify():
            return MathVerifier(settings)
        case PythonFunction():
            return FunctionVerifier(settings, sandbox)
        case Rubric():
            return RubricVerifier(settings, served=served_judge)
