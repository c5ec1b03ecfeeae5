"""The trainer backends by their names: where in the engine each is found.

A backend is a class that takes the run's spec and does what ``engine/training/backends/interface.py`` says.
"""

TRAINERS = {"torch": "engine.training.backends.torch:TorchBackend"}
