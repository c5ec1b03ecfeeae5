"""``python -m engine model-check``: whether a run could begin with a model's folder, and what the folder holds.

The questions are those that a run's preflight asks of a folder by itself: weights that are safetensors, whole and those
of the network, no code, a tokenizer and a template that can be talked to, a vocabulary that fits the network.  Whether
the model fits the machine is a question about a run.  No weight is read and nothing of the folder is run.
"""

from collections import Counter
from pathlib import Path

from engine.models.described_weights import REMEDY, weights_problem
from engine.models.folder import ModelFolder, opened_folder
from engine.models.pretrained_tokenizer import shown_characters
from engine.models.refusal import ModelFolderRefused
from engine.models.vocabulary import tokens_of
from engine.rollout.renderers.chat import chat_renderer
from engine.rollout.renderers.preflight import chat_problem
from engine.spec.model import PretrainedModel
from engine.spec.model_report import ModelProblem, ModelReport
from engine.spec.problems import Problem

FIELD = "folder"
ADAPTER = "adapter_config.json"
PRINTABLE = "".join(map(chr, range(32, 127))) + "\n\t"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def checked(folder: Path) -> ModelReport:
    """The report; what is wrong with the folder is its ``problem``."""
    try:
        _refuse_adapter(folder)
        opened = opened_folder(folder, field=FIELD)
        if (problem := chat_problem(folder.resolve())) is not None:
            return _refused(problem)
        _refuse_foreign_tokenizer(opened)
        if (mismatch := weights_problem(opened)) is not None:
            return _refused(Problem(FIELD, folder.name, mismatch, REMEDY))
        return _report(opened)
    except ModelFolderRefused as unusable:
        return _refused(unusable.problem)


def in_words(report: ModelReport) -> str:
    if report.problem is not None:
        return str(Problem(**dict(report.problem)))
    context = f"{report.context_tokens} tokens" if report.context_tokens else "a context that its config does not name"
    lost = report.lost_characters
    without = f"; its tokenizer cannot hold {shown_characters(lost)}: prompts lose them" if lost else ""
    return (
        f"fine. {report.architecture}: {report.parameters} parameters, {report.dtype}, {context}, {report.template}"
        f"{without}"
    )


def _refuse_adapter(folder: Path) -> None:
    if (folder / ADAPTER).is_file():
        raise ModelFolderRefused(
            Problem(
                FIELD,
                folder.name,
                f"it holds an adapter alone ({ADAPTER}), which is no model without the one that it began from",
                'use a checkpoint of a run with model.lora.export = "merged"',
            )
        )


def _refuse_foreign_tokenizer(folder: ModelFolder) -> None:
    tokens = len(tokens_of(PretrainedModel(path=str(folder.path.resolve()))))
    if tokens > folder.vocab_size:
        message = f"its tokenizer has {tokens} tokens, and its network only {folder.vocab_size}"
        raise ModelFolderRefused(
            Problem(FIELD, folder.path.name, message, "use the tokenizer that belongs to the model")
        )


def _report(folder: ModelFolder) -> ModelReport:
    named = folder.config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else folder.model_type
    weights: Counter[str] = Counter()
    for tensor in folder.tensors.values():
        weights[tensor.dtype] += tensor.elements
    renderer = chat_renderer(folder.path)
    return ModelReport(
        architecture=architecture[:200],
        parameters=folder.parameters,
        context_tokens=folder.longest_context,
        dtype=_DTYPES[weights.most_common(1)[0][0]] if weights else "",
        template=renderer.call_format or "code-fence",
        lost_characters=renderer.tokenizer.lost_in(PRINTABLE),
    )


def _refused(problem: Problem) -> ModelReport:
    """The folder is named by what was given, never by where it lies: its path is nobody's business."""
    return ModelReport(
        problem=ModelProblem(**problem.as_dict() | {"field": FIELD, "value": Path(str(problem.value)).name})
    )
