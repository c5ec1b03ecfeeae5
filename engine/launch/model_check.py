"""``python -m engine model-check``: whether a run could begin with a model's folder, and what the folder holds.

The questions are those that a run's preflight and its trainer ask of a folder by itself: weights that are safetensors,
whole, those of the network and all of them numbers, no code, a network that can be built, a tokenizer and a template
that can be talked to, a vocabulary that fits the network.  Whether the model fits the machine is a question about a
run; what a run has to choose because of the folder is a note.  Nothing of the folder is run.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from engine.models.architecture import ELSEWHERE, Architecture, UnsupportedArchitecture
from engine.models.described_weights import REMEDY, weights_problem
from engine.models.finite_weights import REMEDY as ANOTHER_FILE
from engine.models.finite_weights import read_weights
from engine.models.folder import CONFIG, ModelFolder, opened_folder
from engine.models.loading import loading_problem
from engine.models.pretrained_tokenizer import shown_characters
from engine.models.refusal import FIELD as RUN_FIELD
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


def checked(folder: Path, *, after_bytes: int = 0, seconds: float = float("inf")) -> ModelReport:
    """The report, with everything that is wrong with the folder.

    Weights are read for so many ``seconds``, behind the first ``after_bytes`` of them; where they are not at their end
    then, the report's ``bytes_read`` is what to go on after.
    """
    try:
        _refuse_adapter(folder)
        opened = opened_folder(folder, field=FIELD)
    except ModelFolderRefused as unusable:
        talk = [] if (folder / ADAPTER).is_file() or not folder.is_dir() else list(_in_talk(folder))
        return _refused([unusable.problem, *talk])
    network, notes = _in_network(opened)
    problems = [*_in_talk(folder), *_in_vocabulary(opened), *network]
    weights = read_weights(opened, after_bytes=after_bytes, seconds=seconds)
    if weights.problem is not None:
        problems.append(Problem(FIELD, folder.name, weights.problem, ANOTHER_FILE))
    if problems:
        return _refused(problems)
    return _report(opened, [*notes, *_about_tools(folder)]).model_copy(
        update={"bytes_read": weights.bytes_done, "weight_bytes": weights.bytes}
    )


def in_words(report: ModelReport) -> str:
    if report.problem is not None:
        return "\n".join(str(Problem(**dict(problem))) for problem in (report.problem, *report.more_problems))
    context = f"{report.context_tokens} tokens" if report.context_tokens else "a context that its config does not name"
    lost = report.lost_characters
    without = f"; its tokenizer cannot hold {shown_characters(lost)}: prompts lose them" if lost else ""
    fine = (
        f"fine. {report.architecture}: {report.parameters} parameters, {report.dtype}, {context}, {report.template}"
        f"{without}"
    )
    return "\n".join([fine, *(f"note: {note}" for note in report.notes)])


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


def _in_network(folder: ModelFolder) -> tuple[list[Problem], list[str]]:
    """What is wrong with the network of the config and its weights, and what a run has to choose because of it."""
    try:
        Architecture.of_config(folder.config)
    except UnsupportedArchitecture as unsupported:
        found = unsupported.problem
        message = f"{CONFIG}: {found.field} = {found.value!r}: {found.message}"
        if found.remedy != ELSEWHERE:
            return [Problem(FIELD, folder.path.name, message, found.remedy)], []
        note = f"resources.generator: {message}; {ELSEWHERE}"
        problem = loading_problem(folder.path)
        if problem is not None and problem.field != RUN_FIELD:
            return [], [note, str(problem)]
        if problem is None:
            return [], [note]
        return [replace(problem, message=f"{problem.message} ({CONFIG}: {found.field} = {found.value!r})")], []
    mismatch = weights_problem(folder)
    return ([] if mismatch is None else [Problem(FIELD, folder.path.name, mismatch, REMEDY)]), []


def _in_talk(folder: Path) -> Iterator[Problem]:
    if (problem := chat_problem(folder.resolve())) is not None:
        yield problem


def _about_tools(folder: Path) -> Iterator[str]:
    """Why a run whose environment has tools would not begin with the fields' defaults."""
    if (problem := chat_problem(folder.resolve(), tools=True)) is not None:
        yield f"in an environment with tools: {problem}"


def _in_vocabulary(folder: ModelFolder) -> Iterator[Problem]:
    """A tokenizer that cannot be read is a problem of its own."""
    try:
        tokens = len(tokens_of(PretrainedModel(path=str(folder.path.resolve()))))
    except ModelFolderRefused:
        return
    if tokens > folder.vocab_size:
        message = f"its tokenizer has {tokens} tokens, and its network only {folder.vocab_size}"
        yield Problem(FIELD, folder.path.name, message, "use the tokenizer that belongs to the model")


def _report(folder: ModelFolder, notes: list[str]) -> ModelReport:
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
        notes=notes,
    )


def _refused(problems: list[Problem]) -> ModelReport:
    """The folder is named by what was given, never by where it lies: its path is nobody's business."""
    first, *others = [
        ModelProblem(**replace(problem, field=FIELD, value=Path(str(problem.value)).name).as_dict())
        for problem in problems
    ]
    return ModelReport(problem=first, more_problems=others)
