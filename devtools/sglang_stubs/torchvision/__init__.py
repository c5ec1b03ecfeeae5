"""In the place of torchvision, for SGLang servers of text models on a CPU.

transformers and SGLang import names of torchvision while they look for models of images.  None of these is ever called
for text; whoever calls one is told.
"""

import sys
from enum import Enum
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.28.0"
MODULES = ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional")


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} is torchvision's, which is not installed here: this environment serves text alone")

    return absent


globals()["__path__"] = []  # a package, as far as imports of its modules are concerned
for _name in MODULES:
    _module = ModuleType(f"{__name__}.{_name}")
    _module.__dict__.update(__getattr__=__getattr__, __path__=[], InterpolationMode=InterpolationMode)
    _module.__spec__ = ModuleSpec(_module.__name__, None, is_package=True)
    sys.modules[_module.__name__] = _module
    _parent, _, _child = _module.__name__.rpartition(".")
    setattr(sys.modules[_parent], _child, _module)
