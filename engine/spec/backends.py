"""The trainer backends and generators by their names: where in the engine each is found.

A trainer backend is a class that takes the run's spec and does what ``engine/training/backends/interface.py`` says; a
generator comes from a function of the run's spec and does what ``engine/inference/interface.py`` says.
"""

SHARDED_TRAINERS = {
    "torch": "engine.training.backends.sharded:ShardedBackend",
    "megatron": "engine.training.backends.megatron.backend:MegatronBackend",
}
"""Those that can have several ranks, and what leads them: a class that takes a ``Leader``."""
RANKS = {
    "torch": "engine.training.backends.torch:TorchBackend",
    "megatron": "engine.training.backends.megatron.rank:MegatronRank",
}
"""What each of several ranks is: a class that takes the run's spec and its ``Rank``."""
TRAINERS = {"torch": "engine.training.backends.torch:TorchBackend", "megatron": SHARDED_TRAINERS["megatron"]}
ALWAYS_LED = {"megatron"}
"""Those whose only rank has a leader too."""
SHARING_GENERATORS = {"torch"}
"""Those of which a run may have several: ``SharingGenerator``s."""
GENERATORS = {
    "torch": "engine.inference.torch.factory:torch_generator",
    "sglang": "engine.inference.sglang.factory:sglang_generator",
}
