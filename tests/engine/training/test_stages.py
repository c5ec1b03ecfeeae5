"""Supervised stages: which examples in which step, what is revisited, what is held out; and large files."""

import hashlib
import json
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from engine.cluster.members import learner_for, trainer_for
from engine.failures import RunFailed
from engine.spec.recipe import Recipe
from engine.spec.supervised import Recordings, Stage
from engine.spec.trajectory import Trajectory
from engine.training.batch import Sample, sample_of, samples_from_trajectory
from engine.training.examples import FileExamples, HeldExamples, Sequences
from engine.training.recordings import BadRecording
from engine.training.stages import EpochBatches, StageBatches, cut_by_tokens, is_verified
from tests.engine.models.folders import folder_of
from tests.engine.training.cast import rollouts, run_spec, same_bits, trajectory, turn

TEXTS = [f"{first} plus {second} is {first + second}." for first in range(1, 7) for second in range(1, 6)]
CHATS = [
    {"messages": [{"role": "user", "content": f"{n} + 1 = ?"}, {"role": "assistant", "content": str(n + 1)}]}
    for n in range(24)
]


def examples(count: int, first: int = 0) -> HeldExamples:
    """Each example is one token of its own behind a beginning, and is as long as its number tells."""
    return HeldExamples(
        [[sample_of([1, *[20 + first + n] * (1 + n % 3)], [False, *[True] * (1 + n % 3)])] for n in range(count)]
    )


def shown(samples: Sequence[Sample]) -> list[int]:
    return [int(sample.token_ids[1]) - 20 for sample in samples]


def lines_in(folder: Path, documents: Sequence[Any], name: str = "data.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return file


def spelled(line: str, number: int) -> Sequences:
    text = json.loads(line)["text"]
    return [([1, *map(ord, text)], [False] + [True] * len(text))]


def file_examples(file: Path, *, context: int = 40, too_long: str = "split", sha256: str | None = None) -> FileExamples:
    made = FileExamples(
        file, spelled, field="recipe.stages.0.data", context_tokens=context, too_long=too_long, sha256=sha256
    )
    while not made.read_on(64):
        pass
    return made


# ---- batches ----


def test_by_tokens_every_example_has_its_turn_in_every_epoch_and_no_batch_is_too_large() -> None:
    lengths = np.array([5, 3, 8, 2, 9, 4, 4])
    batches = EpochBatches(range(7), lengths, size=1, tokens=10, seed=3)
    steps = batches.steps_of(1)
    for first in (0, steps):
        epoch = [
            batches.batch(step) for step in range(first, first + (steps if first == 0 else batches.steps_of(2) - steps))
        ]
        assert sorted(number for batch in epoch for number in batch) == list(range(7))
        assert max(sum(lengths[batch]) for batch in epoch) <= 10
    assert [batches.batch(step) for step in range(steps)] != [batches.batch(steps + step) for step in range(steps)]


def test_a_batch_by_tokens_depends_on_its_step_alone() -> None:
    lengths = np.array([5, 3, 8, 2, 9, 4, 4])
    first, again = (EpochBatches(range(7), lengths, size=1, tokens=10, seed=3) for _ in range(2))
    in_order = [first.batch(step) for step in range(20)]
    assert [again.batch(step) for step in reversed(range(20))] == in_order[::-1]


def test_an_example_that_is_longer_than_a_batch_stands_alone() -> None:
    assert cut_by_tokens([0, 1, 2], np.array([2, 50, 3]), 10) == [[0], [1], [2]]
    assert cut_by_tokens([], np.array([]), 10) == []


def test_stages_on_the_same_data_see_them_in_different_orders() -> None:
    data = examples(12)
    orders = [
        [shown(StageBatches(Stage(batch_size=4), data, seed=seed).samples(step)) for step in range(3)]
        for seed in (0, 1)
    ]
    assert orders[0] != orders[1]


def test_epochs_are_as_many_steps_as_their_batches() -> None:
    assert StageBatches(Stage(epochs=3, batch_size=4), examples(13), seed=0).steps == 9
    by_tokens = StageBatches(Stage(epochs=1, batch_tokens=1), examples(13), seed=0)
    assert by_tokens.steps == 13
    assert sorted(n for step in range(13) for n in shown(by_tokens.samples(step))) == list(range(13))


@pytest.mark.parametrize(("decay", "last"), [("cosine", 0.1), ("linear", 0.1), ("constant", 1.0)])
def test_the_learning_rate_rises_and_goes_on_as_the_stage_says(decay: Any, last: float) -> None:
    stage = StageBatches(Stage(steps=20, learning_rate=1.0, warmup=0.2, decay=decay), examples(4), seed=0)
    rates = [stage.learning_rate(step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[-1] == pytest.approx(last)
    assert rates[4:] == sorted(rates[4:], reverse=True)


# ---- revisiting ----


def revisiting(share: float, **more: Any) -> Stage:
    return Stage.model_validate({"batch_size": 8, "revisiting": {"stage": 1, "share": share}} | more)


def test_a_share_of_each_batch_is_revisited() -> None:
    own, earlier = examples(40), examples(10, first=50)
    stage = StageBatches(revisiting(0.25), own, (earlier, [1, 4, 7]), seed=1)
    for step in range(12):
        numbers = shown(stage.samples(step))
        assert [number >= 50 for number in numbers] == [False] * 6 + [True] * 2
        assert {number - 50 for number in numbers if number >= 50} <= {1, 4, 7}
    counts = Counter(number for step in range(3) for number in shown(stage.samples(step)) if number >= 50)
    assert max(counts.values()) <= 3


def test_a_share_of_the_tokens_is_revisited_where_batches_count_tokens() -> None:
    own, earlier = examples(60), examples(30, first=50)
    stage = StageBatches(revisiting(0.5, batch_tokens=40), own, (earlier, range(30)), seed=0)
    samples = stage.samples(0)
    tokens = {
        name: sum(len(s) for s in samples if (s.token_ids[1] >= 70) == late)
        for name, late in (("own", False), ("earlier", True))
    }
    assert tokens["earlier"] <= 20
    assert min(tokens.values()) > 14


def test_what_is_verified_succeeded_and_nothing_of_it_would_be_masked() -> None:
    good, failing = turn([1], [20]), turn([1], [20], failed=True)
    assert is_verified(trajectory(good))
    assert not is_verified(trajectory(good, reward=0.0))
    assert not is_verified(trajectory(failing, good))
    assert not is_verified(trajectory(good, turn([2], [21]))), "the same call with the same output"


def ids_of(played: Trajectory) -> tuple[int, ...]:
    [sample] = samples_from_trajectory(played)
    return tuple(sample.token_ids)


def test_the_second_stage_learns_only_verified_demonstrations_of_the_first() -> None:
    data = {"kind": "demonstrations", "count": 40, "wrong_fraction": 0.5, "tool_error_fraction": 0.5}
    first = {"data": data, "steps": 1, "batch_size": 4}
    second = first | {"revisiting": {"stage": 1, "share": 0.5, "keep": "verified"}}
    learner = learner_for(run_spec({"stages": [first, second]}, environment={"id": "python-math", "levels": [1]}))
    trajectories = list(learner.stages.trajectories(0))
    verified = {ids_of(trajectory) for trajectory in trajectories if is_verified(trajectory)}
    assert verified < set(map(ids_of, trajectories))
    batches = learner.stages.batches(1)
    revisited = [tuple(sample.token_ids) for step in range(20) for sample in batches.samples(step)[2:]]
    assert set(revisited) == verified
    assert learner.supervised(1, 1, 1)["loss"] > 0


@pytest.mark.parametrize(
    ("stages", "field"),
    [
        ([{}, {"revisiting": {"stage": 2}}], "stages.1.revisiting.stage"),
        ([{"revisiting": {"stage": 1}}], "stages.0.revisiting.stage"),
        ([{}, {"batch_size": 1, "revisiting": {"stage": 1}}], "batch_size"),
        (
            [{"data": {"kind": "text", "file": "a.jsonl"}}, {"revisiting": {"stage": 1, "keep": "verified"}}],
            "stages.1.revisiting.keep",
        ),
    ],
)
def test_what_cannot_be_revisited_is_refused(stages: Any, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Recipe(stages=stages)
    assert field in str(refused.value.errors()[0]["ctx"]["field"])


def test_what_an_earlier_stage_holds_out_is_not_revisited(tmp_path: Path) -> None:
    file = lines_in(tmp_path, CHATS)
    stages = [
        stage_of(file, "chat", validation_share=0.5),
        stage_of(lines_in(tmp_path, CHATS[:4], "own.jsonl"), "chat", revisiting={"stage": 1, "share": 0.5}),
    ]
    learner = learner_for(run_spec({"stages": stages}), tmp_path)
    learner.stages.read()
    held_out = {bytes(s.token_ids) for part in learner.stages.batches(0).validation_samples() for s in part}
    second = learner.stages.batches(1)
    revisited = {bytes(sample.token_ids) for step in range(40) for sample in second.samples(step)[2:]}
    assert len(held_out) == len(revisited) == 12
    assert not held_out & revisited


@pytest.mark.parametrize(("size", "share", "revisited"), [(2, 0.01, 1), (2, 0.99, 1), (8, 0.99, 7), (8, 0.3, 2)])
def test_a_batch_is_as_large_as_it_says_whatever_the_share(size: int, share: float, revisited: int) -> None:
    stage = StageBatches(revisiting(share, batch_size=size), examples(20), (examples(20, first=50), range(20)), seed=0)
    numbers = shown(stage.samples(0))
    assert (len(numbers), sum(number >= 50 for number in numbers)) == (size, revisited)


# ---- validation ----


def test_held_out_examples_are_never_trained_on_and_their_loss_is_measured() -> None:
    stage = Stage(batch_size=4, steps=10, validation_share=0.25, validation_every=4)
    batches = StageBatches(stage, examples(20), seed=0)
    held_out = {number for samples in batches.validation_samples() for number in shown(samples)}
    assert len(held_out) == 5
    trained = {number for step in range(50) for number in shown(batches.samples(step))}
    assert trained == set(range(20)) - held_out
    assert [step for step in range(1, 11) if batches.validation_due(step)] == [4, 8, 10]


def test_without_a_share_nothing_is_held_out_and_one_example_is_always_trained_on() -> None:
    assert not StageBatches(Stage(), examples(4), seed=0).validation_due(600)
    alone = StageBatches(Stage(validation_share=0.9), examples(1), seed=0)
    assert shown(alone.samples(0)) == [0]


def test_the_validation_loss_is_that_of_the_examples_held_out() -> None:
    trainer = trainer_for(run_spec({}))
    batches = StageBatches(Stage(validation_share=0.5, batch_size=2), examples(8), seed=0)
    samples = [sample for part in batches.validation_samples() for sample in part]
    rows = trainer.backend.logprobs(samples)
    expected = -sum(map(sum, rows)) / sum(int(sample.loss_mask.sum()) for sample in samples)
    assert trainer.validation_loss(batches) == pytest.approx(expected, rel=1e-6)


# ---- packing ----


@pytest.mark.parametrize("kind", ["builtin", "pretrained", "lora"])
def test_a_packed_stage_learns_what_an_unpacked_one_does(kind: str) -> None:
    model: dict[str, Any] = {} if kind == "builtin" else {
        "model": {"kind": "pretrained", "path": str(folder_of("qwen3")), "context_tokens": 64}
        | ({"lora": {"rank": 4, "dropout": 0.0}} if kind == "lora" else {})
    }  # fmt: skip
    losses = []
    for packing in (False, True):
        trainer = trainer_for(run_spec({}, **model))
        stage = Stage(steps=4, batch_size=6, packing=packing, learning_rate=1e-3)
        batches = StageBatches(stage, examples(12), seed=0, row_tokens=64)
        losses.append([step["loss"] for step in trainer.supervised(batches, steps=4, first_step=0)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-5)


# ---- files ----


def test_a_file_is_read_on_demand_and_gives_what_its_lines_say(tmp_path: Path) -> None:
    file = lines_in(tmp_path, [{"text": text} for text in TEXTS])
    made = file_examples(file)
    assert made.counts.examples == len(TEXTS)
    assert made.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    for number in (29, 0, 17):
        [sample] = made.samples(number)
        assert "".join(map(chr, sample.token_ids[1:])) == TEXTS[number]
        assert made.tokens[number] == len(sample)


def test_a_text_in_pieces_is_learned_to_the_same_tokens_each_once(tmp_path: Path) -> None:
    text = "".join(chr(97 + n % 26) for n in range(100))
    made = file_examples(lines_in(tmp_path, [{"text": text}, {"text": "ab"}]), context=16)
    pieces = [made.samples(number)[0] for number in range(made.counts.examples)]
    learned = [token for piece in pieces for token in piece.token_ids[piece.loss_mask].tolist()]
    assert "".join(map(chr, learned)) == text + "ab"
    assert max(map(len, pieces)) <= 16
    assert made.counts.split == 1


@pytest.mark.parametrize(
    ("too_long", "lengths", "counted"), [("cut", [16, 3], {"cut": 1}), ("drop", [3], {"dropped": 1})]
)
def test_what_does_not_fit_is_cut_or_dropped_and_counted(
    tmp_path: Path, too_long: str, lengths: list[int], counted: dict[str, int]
) -> None:
    made = file_examples(lines_in(tmp_path, [{"text": "x" * 99}, {"text": "ab"}]), context=16, too_long=too_long)
    assert made.tokens.tolist() == lengths
    assert {name: count for name, count in vars(made.counts).items() if name in ("cut", "dropped") and count} == counted


def test_what_does_not_fit_is_refused_with_its_line_unless_the_stage_says_otherwise(tmp_path: Path) -> None:
    file = lines_in(tmp_path, [{"text": "ab"}, {"text": "x" * 99}])
    with pytest.raises(BadRecording, match="line 2: 100 tokens do not fit .* 16; .*recipe.stages.0.data.too_long"):
        file_examples(file, context=16, too_long="refuse")


def test_a_file_that_is_not_the_one_named_or_changes_or_is_empty_is_refused(tmp_path: Path) -> None:
    file = lines_in(tmp_path, [{"text": "ab"}])
    with pytest.raises(BadRecording, match="data.sha256 = '0000"):
        file_examples(file, sha256="0" * 64)
    made = file_examples(file)
    file.write_text(json.dumps({"text": "cdefg"}) + "\n")
    with pytest.raises(RunFailed, match="has changed since the run read it"):
        made.samples(0)
    file.write_text("\n \n")
    with pytest.raises(BadRecording, match="holds nothing to learn"):
        file_examples(file)
    file.write_bytes(b'{"text": "ab"}\n{"text": "\xff"}\n')
    with pytest.raises(BadRecording, match="line 2: is no UTF-8"):
        file_examples(file)


def test_a_file_of_64_mib_is_learned_with_a_thousandth_of_that_in_memory(tmp_path: Path) -> None:
    """Its 2,048 lines of 32 KiB stay on the disk; what is kept is where they begin."""
    file = tmp_path / "large.jsonl"
    with file.open("w") as lines:
        for number in range(2048):
            lines.write(json.dumps({"text": chr(97 + number % 26) * 8, "more": "y" * 32768}) + "\n")
    tracemalloc.start()
    made = file_examples(file)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.counts.examples == 2048
    assert held < 2**20
    assert peak < 2**21
    assert made.samples(27)[0].token_ids[1] == ord("b")


def stage_of(file: Path, kind: str, **more: Any) -> dict[str, Any]:
    return {"data": {"kind": kind, "file": file.name}, "steps": 3, "batch_size": 4} | more


@pytest.mark.parametrize("kind", ["builtin", "pretrained", "lora"])
def test_text_and_chat_lower_their_loss_one_after_the_other(tmp_path: Path, kind: str) -> None:
    """CPT, then SFT; all tokens of a text are learned, of a conversation those of the assistant alone."""
    stages = [
        stage_of(lines_in(tmp_path, [{"text": text} for text in TEXTS], "text.jsonl"), "text", packing=True),
        stage_of(lines_in(tmp_path, CHATS, "chat.jsonl"), "chat", learning_rate=1e-2),
    ]
    model: dict[str, Any] = {} if kind == "builtin" else {
        "model": {"kind": "pretrained", "path": str(folder_of("qwen3")), "context_tokens": 128}
        | ({"lora": {"rank": 4}} if kind == "lora" else {})
    }  # fmt: skip
    spec = run_spec({"stages": [stage | {"steps": 20} for stage in stages]}, **model)
    learner = learner_for(spec, tmp_path)
    learner.stages.read()
    for number in (0, 1):
        begun = learner.stage(number)
        assert (begun.steps, begun.counts["examples"]) == (20, (30, 24)[number])
        first, last = learner.supervised(number, 1, 2), learner.supervised(number, 3, 20)
        assert last["loss"] < first["loss"]
    [text], [chat] = learner.stages.batches(0).samples(0)[:1], learner.stages.batches(1).samples(0)[:1]
    assert text.loss_mask[text.positions > 0].all(), "but for the first of each text in the row"
    assert 0 < chat.loss_mask.sum() < len(chat) - 2


def test_annealed_weight_decay_falls_on_a_line_to_the_last_step(tmp_path: Path) -> None:
    """A token that nothing shows has no gradient at the input of an untied model: decay alone moves its embedding."""
    file = lines_in(tmp_path, [{"text": "aaaa bbbb"}] * 8, "text.jsonl")
    stage = stage_of(file, "text", learning_rate=0.1, warmup=0.0, decay="constant")
    stage |= {"weight_decay": 0.1, "final_weight_decay": 0.01}
    model = {"kind": "pretrained", "path": str(folder_of("qwen3")), "context_tokens": 64}
    learner = learner_for(run_spec({"stages": [stage]}, model=model), tmp_path)
    learner.stages.read()
    shown = {number for sample in learner.stages.batches(0).samples(0) for number in sample.token_ids.tolist()}
    unseen = min(set(range(300)) - shown)
    before = learner.weights()["model.embed_tokens.weight"][unseen]
    learner.supervised(0, 1, 3)
    after = learner.weights()["model.embed_tokens.weight"][unseen]
    torch.testing.assert_close(after, before * (1 - 0.01) * (1 - 0.0055) * (1 - 0.001), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["sft-chat", "sft-two-stage", "cpt", "cpt-two-stage"])
def test_the_presets_learn_their_data(tmp_path: Path, name: str) -> None:
    """With fewer steps, smaller batches and fewer demonstrations; the rest is theirs."""
    lines_in(tmp_path, CHATS, "chat.jsonl")
    lines_in(tmp_path, [{"text": text} for text in TEXTS], "text.jsonl")
    lines_in(tmp_path, [{"text": text} for text in TEXTS], "trajectories.jsonl")
    recipe = Recipe.model_validate({"preset": name}).model_dump(mode="json")
    for stage in recipe["stages"]:
        stage |= {"steps": 2, "batch_size": 8, "batch_tokens": min(stage["batch_tokens"], 128)}
        if stage["data"]["kind"] == "demonstrations":
            stage["data"] |= {"count": 32, "wrong_fraction": 0.2}
    learner = learner_for(run_spec(recipe, environment={"id": "python-math", "levels": [1]}), tmp_path)
    learner.stages.read()
    before = learner.weights()
    for number in range(len(recipe["stages"])):
        metrics = learner.supervised(number, 1, 2)
        assert set(metrics) == ({"loss", "validation_loss"} if name == "sft-chat" else {"loss"})
    assert not same_bits(learner.weights(), before)


def test_a_bad_line_of_a_stage_ends_the_run_with_file_line_and_field(tmp_path: Path) -> None:
    file = lines_in(tmp_path, [*CHATS[:2], {"messages": [{"role": "robot", "content": "x"}]}])
    learner = learner_for(run_spec({"stages": [stage_of(file, "chat")]}), tmp_path)
    with pytest.raises(BadRecording, match=r"data.jsonl: line 3: messages\[0\].role = 'robot'"):
        learner.stages.read()


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('{"text": "\\ud800"}', "the built-in vocabulary has no"),
        ('{"text": 3}', "line 1: text = 3: there is no text"),
        ('{"body": "x"}', "line 1: text = '.missing.': there is no text"),
        ("[1]", "line 1 = .*: this is no JSON object"),
        ("[" * 100000, "the line is no JSON"),
        ("{" + "9" * 10000, "the line is no JSON"),
    ],
)
def test_a_line_that_is_no_text_is_refused_in_plain_words(tmp_path: Path, line: str, reported: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(line + "\n")
    learner = learner_for(run_spec({"stages": [stage_of(file, "text")]}), tmp_path)
    with pytest.raises(BadRecording, match=reported) as refused:
        learner.stages.read()
    str(refused.value).encode()


def test_a_character_that_the_built_in_vocabulary_lacks_is_refused(tmp_path: Path) -> None:
    file = lines_in(tmp_path, [{"text": "fine"}, {"text": "caf\u00e9"}])
    learner = learner_for(run_spec({"stages": [stage_of(file, "text")]}), tmp_path)
    with pytest.raises(BadRecording, match="line 2: text = .*the built-in vocabulary has no '\u00e9'"):
        learner.stages.read()


def test_slices_of_a_stage_on_a_file_equal_one_piece(tmp_path: Path) -> None:
    """The learner is saved in the middle of the second stage and goes on elsewhere, to the same bits."""
    file = lines_in(tmp_path, CHATS)
    spec = run_spec({"stages": [stage_of(file, "chat"), stage_of(file, "chat", revisiting={"stage": 1, "share": 0.5})]})

    def begun() -> Any:
        learner = learner_for(spec, tmp_path)
        learner.stages.read()
        return learner

    whole, stopped, resumed = begun(), begun(), begun()
    for learner in (whole, stopped):
        learner.supervised(0, 1, 3)
    whole.supervised(1, 1, 3)
    stopped.supervised(1, 1, 2)
    stopped.save(tmp_path / "middle")
    resumed.load(tmp_path / "middle")
    resumed.supervised(1, 3, 3)
    assert same_bits(whole.weights(), resumed.weights())


def test_every_file_of_a_stage_has_its_digest_by_its_name_in_the_spec(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("".join(rollout.model_dump_json() + "\n" for rollout in rollouts()))
    chat = lines_in(tmp_path, CHATS)
    stages = [stage_of(recorded, "recordings"), {"steps": 1}, stage_of(chat, "chat")]
    learner = learner_for(run_spec({"stages": stages}), tmp_path)
    while not (read := learner.read_on()).is_done:
        pass
    assert read.digests == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (recorded, chat)}


def test_recordings_are_a_stage_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_text("".join(rollout.model_dump_json() + "\n" for rollout in rollouts()))
    stage = Stage(data=Recordings(file=file.name), steps=2, batch_size=4)
    learner = learner_for(run_spec({"stages": [stage.model_dump(mode="json")]}), tmp_path)
    assert learner.supervised(0, 1, 2)["loss"] > 0


def test_a_sample_with_several_segments_opens_once(tmp_path: Path) -> None:
    def two(line: str, number: int) -> Sequences:
        return [([1, 2, 3], [False, True, True]), ([1, 5], [False, True])]

    made = FileExamples(lines_in(tmp_path, [{}]), two, field="f", context_tokens=9, too_long="refuse", sha256=None)
    assert made.read_on(10**6)
    assert [sample.opens for sample in made.samples(0)] == [True, False]
    assert replace(made.counts).examples == 1
