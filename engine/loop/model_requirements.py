"""What a run needs of the model that it names, asked of its folder before a start.

Nothing of the folder is run.  Weights are read before they are trained, to see that all of them are numbers; a chat
reads none here.  A built-in model needs nothing.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from engine.loop.generator_requirements import free_memory
from engine.models.described_weights import REMEDY, weights_problem
from engine.models.finite_weights import REMEDY as ANOTHER_FILE
from engine.models.finite_weights import nonfinite_problem
from engine.models.folder import ModelFolder, opened_folder
from engine.models.memory import (
    TrainerMemory,
    adaptable_modules,
    adapted_modules,
    is_named,
    readable_bytes,
    trainer_memory,
)
from engine.models.origin import ModelOrigin, model_origin
from engine.models.refusal import ModelFolderRefused
from engine.models.vocabulary import tokens_of
from engine.rollout.renderers.preflight import chat_problem
from engine.spec.estimator import CriticEstimator
from engine.spec.model import BuiltinModel, Lora, Model, PretrainedModel
from engine.spec.problems import Problem
from engine.spec.recipe import Recipe
from engine.spec.resources import Resources
from engine.spec.run import RunSpec
from engine.training.backends.megatron.layout import layout_problems
from engine.training.backends.megatron.memory import memory_of_rank


def lacking_in_model(
    spec: RunSpec, *, with_trainer: bool = True, with_tools: bool = True, free_bytes: int | None = None
) -> list[Problem]:
    """Return what the spec names and this machine does not have, or has no room for; a chat has no trainer.

    ``with_tools``: the model must be able to call some.  There is room in ``free_bytes``, which are this machine's by
    default.
    """
    try:
        origin = model_origin(spec.model)
        if isinstance(origin.model, BuiltinModel):
            return list(_no_folder(spec.resources)) if with_trainer else []
        assert origin.weights is not None  # a pretrained model has a folder
        folder = opened_folder(origin.weights)
        if (problem := _chat(folder, origin.model, with_tools)) is not None:
            return [problem]
        problems = [*_context(folder, origin), *_vocabulary(folder, spec.model), *_lora(folder, origin.model)]
        if not problems and (mismatch := weights_problem(folder)) is not None:
            return [Problem("model.path", str(folder.path), mismatch, REMEDY)]
        if not problems and with_trainer and (damage := nonfinite_problem(folder)) is not None:
            return [Problem("model.path", str(folder.path), damage, ANOTHER_FILE)]
    except ModelFolderRefused as unusable:
        return [unusable.problem]
    recipe = spec.recipe if with_trainer else None
    if recipe is not None and (unfit := list(_layout(folder, origin.model, spec.resources))):
        return [*problems, *unfit]  # a layout that does not divide has no memory to be counted
    room = _room(folder, origin.model, spec.resources, recipe, free_bytes)
    return [*problems, *_attention(origin.model, spec.resources), *room]


def memory_in_words(model: Model, recipe: Recipe, resources: Resources) -> str | None:
    """Say what the trainer of a run takes; None for a built-in model.  Raises ModelFolderRefused."""
    origin = model_origin(model)
    if isinstance(origin.model, BuiltinModel) or origin.weights is None:
        return None
    memory = _trainer_memory(opened_folder(origin.weights), origin.model, recipe, resources)
    return estimate(memory, origin.model, device=resources.device)


def estimate(memory: TrainerMemory, model: PretrainedModel, *, device: str) -> str:
    """One line for people."""
    place = loading = ""
    if memory.ranks > 1:
        place = f" on each of {memory.ranks} GPUs" if device == "cuda" else f" in each of {memory.ranks} processes"
        loading = f"; while it loads, each takes {readable_bytes(memory.loading)} of the machine's own memory"
    how = "all weights" if model.lora is None else f"LoRA {model.lora.rank}"
    how = how if memory.trained else "none trained"
    parts = " + ".join(f"{name} {readable_bytes(size)}" for name, size in memory.parts.items())
    return (
        f"{_billions(memory.parameters)} parameters, {how}, {model.dtype}, {model.context_tokens} tokens of context: "
        f"{readable_bytes(memory.total)}{place} ({parts}){loading}"
    )


def _chat(folder: ModelFolder, model: PretrainedModel, with_tools: bool) -> Problem | None:
    """Asked first and in a process of its own: tokenizer and template are a stranger's."""
    return chat_problem(folder.path, tool_calls=model.tool_calls, reasoning=model.reasoning, tools=with_tools)


def _context(folder: ModelFolder, origin: ModelOrigin) -> Iterator[Problem]:
    longest = folder.longest_context
    if longest is not None and origin.context_tokens > longest:
        yield Problem(
            "model.context_tokens",
            origin.context_tokens,
            f"the model was made for {longest} tokens (max_position_embeddings)",
            f"use at most {longest}",
        )


def _vocabulary(folder: ModelFolder, model: Model) -> Iterator[Problem]:
    tokens = len(tokens_of(model))
    if tokens > folder.vocab_size:
        yield Problem(
            "model.path",
            str(folder.path),
            f"its tokenizer has {tokens} tokens, and its network only {folder.vocab_size}",
            "use the tokenizer that belongs to the model",
        )


def _lora(folder: ModelFolder, model: PretrainedModel) -> Iterator[Problem]:
    lora = model.lora
    if lora is None:
        return
    if not lora.is_on_all_linear:
        linear = adaptable_modules(folder)
        known = sorted({name.rpartition(".")[2] for name in adapted_modules(folder, Lora())})
        for target in lora.targets:
            if not any(is_named(name, target) for name in linear):
                yield Problem(
                    "model.lora.targets",
                    target,
                    "the model has no linear module of this name",
                    f"use some of: {', '.join(known)}",
                )
    smallest = min((min(folder.tensors[f"{name}.weight"].shape) for name in adapted_modules(folder, lora)), default=0)
    if smallest and lora.rank > smallest:
        yield Problem(
            "model.lora.rank",
            lora.rank,
            f"a module that it adapts has only {smallest} rows or columns, so that it would be no saving",
            f"use at most {smallest}, or leave model.lora out",
        )


def _attention(model: PretrainedModel, resources: Resources) -> Iterator[Problem]:
    if model.attention != "flash":
        return
    if resources.device != "cuda":
        yield Problem("model.attention", "flash", "flash attention runs on a GPU alone", 'use "sdpa"')
    elif find_spec("flash_attn") is None:
        yield Problem("model.attention", "flash", "flash-attn is not installed", 'install it, or use "sdpa"')


def _room(
    folder: ModelFolder, model: PretrainedModel, resources: Resources, recipe: Recipe | None, free_bytes: int | None
) -> Iterator[Problem]:
    """Whether generator and trainer fit into ``free_bytes``, without a ``recipe`` the generator alone.

    What a GPU has room for, its own process finds out.
    """
    generator_bytes = 0
    if resources.generator == "torch":
        from engine.inference.torch.memory import divided_bytes
        from engine.models.architecture import Architecture, UnsupportedArchitecture

        try:
            architecture = Architecture.of_config(folder.config)
        except UnsupportedArchitecture as unsupported:
            field = f"config.json: {unsupported.problem.field} = {unsupported.problem.value!r}"
            problem = f"the torch generator cannot serve it ({field}: {unsupported.problem.message})"
            yield Problem("model.path", str(folder.path), problem, unsupported.problem.remedy)
            return
        context, slots = model.context_tokens, resources.kv_slots
        if architecture.sliding_window is not None and context > architecture.sliding_window:
            yield Problem(
                "model.context_tokens",
                context,
                f"some layer of the model looks back on {architecture.sliding_window} tokens alone (sliding_window), "
                "which the torch generator does not compute",
                f"use at most {architecture.sliding_window}, or a generator that serves it",
            )
            return
        generator_bytes = resources.generators * divided_bytes(
            architecture, context_tokens=context, slots=slots, dtype=model.dtype, decoders=resources.decoders
        )
    if resources.device != "cpu":
        return
    available = free_memory() if free_bytes is None else free_bytes
    if recipe is None:
        if generator_bytes > available:
            yield Problem(
                "model.context_tokens",
                model.context_tokens,
                f"sampling takes {readable_bytes(generator_bytes)}; this machine has {readable_bytes(available)}",
                "use a shorter context, a smaller model, or more memory",
            )
        return
    memory = _trainer_memory(folder, model, recipe, resources)
    if memory.on_one_machine + generator_bytes > available:
        yield Problem(
            "model.path",
            str(folder.path),
            f"{estimate(memory, model, device='cpu')}, and {readable_bytes(generator_bytes)} for the generator's "
            f"{resources.generators * resources.kv_slots} slots; this machine has {readable_bytes(available)}",
            "use model.lora, model.gradient_checkpointing, a smaller model.context_tokens, model.microbatch_tokens or "
            "resources.kv_slots, or more memory",
        )


def _trainer_memory(folder: ModelFolder, model: PretrainedModel, recipe: Recipe, resources: Resources) -> TrainerMemory:
    is_megatron = resources.trainer == "megatron"
    memory = trainer_memory(
        folder,
        model,
        reference=_keeps_reference(recipe),
        critic=isinstance(recipe.credit, CriticEstimator),
        ranks=1 if is_megatron else resources.trainer_ranks,
        trains=recipe.trains,
        sends_adapter=resources.sends_adapter_of(model),
    )
    if not is_megatron or not recipe.trains:
        return memory
    ranks, reference = resources.trainer_ranks, _keeps_reference(recipe)
    return memory_of_rank(folder, model, resources.megatron, ranks=ranks, of_one=memory, reference=reference)


def _no_folder(resources: Resources) -> Iterator[Problem]:
    if resources.trainer == "megatron":
        problem = "the trainer megatron reads its weights from a model's folder, and a built-in model has none"
        yield Problem("model.kind", "builtin", problem, 'give a folder with kind = "pretrained", or trainer = "torch"')


def _layout(folder: ModelFolder, model: PretrainedModel, resources: Resources) -> Iterator[Problem]:
    """Whether the trainer's ranks can share the network."""
    if resources.trainer != "megatron":
        return
    if find_spec("megatron") is None:
        remedy = 'install what requirements-megatron.lock names, or use "torch"'
        yield Problem("resources.trainer", "megatron", "megatron-core is not installed here", remedy)
    yield from layout_problems(folder.config, model, resources.megatron, resources.trainer_ranks)


def _keeps_reference(recipe: Recipe) -> bool:
    """Say whether a loss compares the policy with the one that RL begins with.  A weight of 0 is its absence."""
    penalised = recipe.kl is not None and recipe.kl.beta > 0
    preferred = recipe.preference is not None and recipe.preference.weight > 0
    return penalised or preferred or recipe.objective.kind == "dpo"


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"
