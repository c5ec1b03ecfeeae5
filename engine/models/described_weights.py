"""Whether a folder's weights are those of the network that its ``config.json`` describes, asked of the headers alone.

The question is asked of the families whose weights ``architecture.py`` can name.  Of the others transformers finds it
out when it loads them.
"""

from collections.abc import Iterator

from engine.models.architecture import Architecture, UnsupportedArchitecture
from engine.models.folder import CONFIG, ModelFolder

REMEDY = "use the files of one and the same model, or download it again"


def weights_problem(folder: ModelFolder) -> str | None:
    """Say which weight is missing or has another shape than the network's; None where all of them fit.

    Weights that the network does not have are not asked for: nothing loads them.
    """
    try:
        architecture = Architecture.of_config(folder.config)
    except UnsupportedArchitecture:
        return None
    return next(_problems(folder, architecture), None)


def _problems(folder: ModelFolder, architecture: Architecture) -> Iterator[str]:
    for name, shape in architecture.weights():
        held = folder.tensors.get(name)
        if held is None:
            yield f"its weights lack {name}, which the network of its {CONFIG} has"
        elif held.shape != shape:
            found, wanted = list(held.shape), list(shape)
            yield f"{held.file.name}: {name} has the shape {found}, and the network of its {CONFIG} has {wanted}"
