"""The trainer backends and generators by their names: where in the engine each is found.

A trainer backend is a class that takes the run's spec and does what ``engine/training/backends/interface.py`` says; a
generator comes from a function of the run's spec and does what ``engine/inference/interface.py`` says.
"""

SHARDED_TRAINERS = {"torch": "engine.training.backends.sharded:ShardedBackend"}
"""Those that can have several ranks, and what leads them: a class that takes a ``Leader``."""
TRAINERS = {"torch": "engine.training.backends.torch:TorchBackend"}
GENERATORS = {
    "torch": "engine.inference.torch.factory:torch_generator",
    "sglang": "engine.inference.sglang.factory:sglang_generator",
}
