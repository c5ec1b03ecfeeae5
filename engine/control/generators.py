"""The generator that a spec asks for."""

from engine.inference.generator import Generator
from engine.spec.run import RunSpec


def generator_for(spec: RunSpec) -> Generator:
    resources = spec.resources
    return Generator(
        spec.model,
        slots=resources.kv_slots,
        threads=resources.threads,
        device=resources.device,
        seed=spec.seed,
        environment_id=spec.environment.id,
    )
