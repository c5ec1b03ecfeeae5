"""Which files a version of a model may have: those of a flat model folder, and none that could run.

Everything that is not known is refused by its name, from a folder, an archive or an upload alike.
"""

import re

from engine.spec.model_files import MANIFEST
from engine.spec.problems import Problem

MOST_FILES = 2000
MOST_TEXT_BYTES = 256 * 2**20
"""The size of a file that holds no weights."""
WEIGHTS = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")
_SUFFIXES = (".json", WEIGHTS, ".txt", ".jinja", ".model", ".md")
_BY_NAME = re.compile(r"(?i)(licen[cs]e|notice|copying)([._-][\w.-]*)?")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".npz", ".h5", ".msgpack", ".joblib")
_CODE = (".py", ".pyc", ".so", ".sh", ".ipynb", ".js", ".dll", ".exe")
KNOWN = "json, safetensors, txt, jinja, model, md, LICENSE, NOTICE"


def is_left_out(name: str) -> bool:
    """Whether it is not the model's: hidden files, such as a download leaves behind, and a manifest of ours."""
    return name.startswith(".") or name == MANIFEST


def problem_with(name: str, size: int, field: str) -> Problem | None:
    """Why a file of this name cannot be part of a version; None where it can."""
    if not _NAME.fullmatch(name):
        remedy = "name it with letters, digits and . _ - + = alone, in no folder"
        return Problem(field, name, f"{name!r} is no name of a model's file", remedy)
    lower = name.lower()
    if lower.endswith(_PICKLED):
        message = f"{name}: pickled weights run whatever code the file names when they are opened"
        return Problem(field, name, message, "convert them to safetensors, and leave this file out")
    if lower.endswith(_CODE):
        message = f"{name}: code that comes with a model is never run, and not kept"
        return Problem(field, name, message, "leave it out; use a model whose architecture transformers knows")
    if not (lower.endswith(_SUFFIXES) or _BY_NAME.fullmatch(name)):
        return Problem(field, name, f"{name} is no file of a model folder", f"leave it out; known are: {KNOWN}")
    if size > MOST_TEXT_BYTES and not lower.endswith(WEIGHTS):
        message = f"{name} has {size} bytes, and only weights may have more than {MOST_TEXT_BYTES}"
        return Problem(field, name, message, "leave it out")
    return None


def is_licence(name: str) -> bool:
    return _BY_NAME.fullmatch(name) is not None
