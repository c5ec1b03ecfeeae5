"""What ``python -m engine model-check`` says of a model's folder."""

from typing import Any

from engine.spec.strict import Strict


class ModelProblem(Strict):
    """Why the folder is not used, as ``engine.spec.problems.Problem`` says it."""

    field: str
    value: Any
    message: str
    remedy: str


class ModelReport(Strict):
    """What the folder holds; with a problem nothing else is said."""

    problem: ModelProblem | None = None
    more_problems: list[ModelProblem] = []
    """What is wrong besides."""
    architecture: str = ""
    parameters: int = 0
    context_tokens: int | None = None
    """The positions that the model was made for; None where its config does not say."""
    dtype: str = ""
    """The type of most weights."""
    template: str = ""
    """The form in which its chat template writes tool calls; ``code-fence`` where it writes none."""
    lost_characters: str = ""
    """Printable ones of ASCII, newline and tab that its tokenizer cannot hold: prompts would lose them."""
    notes: list[str] = []
    """What a run has to choose because of the folder, each a sentence."""
    bytes_read: int = 0
    """How many bytes of the weights were looked at, where nothing was wrong with them."""
    weight_bytes: int = 0
    """All of them."""
