"""The supervised stages of a run: which examples a step of a stage learns, and how fast.

Everything follows from (stage, seed, step): nothing random is kept, so a stage that was resumed in its middle goes on
to the same bits.  The data of a stage are made or read when it is first asked for; files are indexed before.

Two-stage SFT with revisiting (ALE, 3.2.2): a stage may take a share of every batch from the data of an earlier one,
all of them or only those that are verified.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.algorithms.schedules import linear_between, warmup_then_decay
from engine.failures import RunFailed
from engine.spec.model import Model
from engine.spec.supervised import Chat, Demonstrations, Recordings, Stage, Text
from engine.spec.trajectory import Trajectory
from engine.training.batch import Sample, samples_from_trajectory
from engine.training.examples import Examples, FileExamples, HeldExamples, LineReader
from engine.training.packing import packed
from engine.training.recordings import FIELD, BadRecording, digest_of, file_below, recorded_trajectories
from engine.training.supervised import batch_of_step, with_turn_masks

MOST_VALIDATION = 512
"""Examples that are kept out of training, at most: measuring more of them takes long and says little more."""
INDEXED_BYTES = 4 * 2**20
"""The bytes of a file, between two signs of life."""
_VALIDATION_EPOCH = 2**62
"""The number of the order from which held-out examples are taken; no stage has so many epochs."""


class EpochBatches:
    """Batches of some of the examples, epoch after epoch, each in its own order drawn from (seed, epoch).

    ``size`` counts examples and gives full batches only; ``tokens``, where it is not 0, counts tokens, and then every
    example has its turn in every epoch.
    """

    def __init__(self, numbers: Sequence[int], lengths: np.ndarray, *, size: int, tokens: int, seed: int) -> None:
        self._numbers, self._lengths, self._size, self._most, self._seed = numbers, lengths, size, tokens, seed
        self._first_steps = [0]
        """The first steps of each epoch that was cut by tokens, and of the next one."""
        self._cut: tuple[int, list[list[int]]] = (-1, [])

    def batch(self, step: int) -> list[int]:
        """The examples of step ``step``, from 0."""
        if not self._most:
            chosen = batch_of_step(len(self._numbers), step, size=self._size, seed=self._seed)
            return [self._numbers[place] for place in chosen]
        while self._first_steps[-1] <= step:
            self._first_steps.append(self._first_steps[-1] + len(self._batches(len(self._first_steps) - 1)))
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
        return self._batches(epoch)[step - self._first_steps[epoch]]

    def steps_of(self, epochs: int) -> int:
        if not self._most:
            return epochs * (len(self._numbers) // min(self._size, len(self._numbers)))
        return sum(len(self._batches(epoch)) for epoch in range(epochs))

    def _batches(self, epoch: int) -> list[list[int]]:
        if self._cut[0] != epoch:
            order = np.random.Generator(np.random.Philox(key=[self._seed, epoch])).permutation(len(self._numbers))
            self._cut = epoch, cut_by_tokens([self._numbers[place] for place in order], self._lengths, self._most)
        return self._cut[1]


def cut_by_tokens(numbers: Sequence[int], lengths: np.ndarray, most: int) -> list[list[int]]:
    """The numbers in their order, cut before each that would make more than ``most`` tokens."""
    batches: list[list[int]] = []
    room = 0
    for number in numbers:
        length = int(lengths[number])
        if not batches or length > room:
            batches.append([])
            room = most
        batches[-1].append(number)
        room -= length
    return batches


class StageBatches:
    """A stage's batches follow from its data, the seed and the step alone."""

    def __init__(
        self,
        stage: Stage,
        own: Examples,
        revisited: tuple[Examples, Sequence[int]] | None = None,
        *,
        seed: int,
        row_tokens: int | None = None,
    ) -> None:
        """``revisited`` are the examples of an earlier stage and which of them count.

        ``row_tokens`` is how long a packed row may be; a stage that packs none needs no such number.
        """
        if stage.packing and row_tokens is None:
            raise ValueError("a stage that packs must know how long a row may be")
        self.stage = stage
        self._row_tokens = row_tokens
        self._own = own
        self._revisited = revisited
        lengths = own.tokens
        held_out, trained = _held_out(len(lengths), stage.validation_share, seed)
        self._held_out = held_out
        share = 0.0 if stage.revisiting is None else stage.revisiting.share
        revisits = min(stage.batch_size - 1, max(1, round(stage.batch_size * share))) if share else 0
        own_tokens = max(1, stage.batch_tokens - round(stage.batch_tokens * share)) if stage.batch_tokens else 0
        self._batches = EpochBatches(trained, lengths, size=stage.batch_size - revisits, tokens=own_tokens, seed=seed)
        if revisited is not None:
            earlier, chosen = revisited
            tokens = max(1, round(stage.batch_tokens * share)) if stage.batch_tokens else 0
            self._earlier = EpochBatches(chosen, earlier.tokens, size=revisits, tokens=tokens, seed=seed)
        self.steps = self._batches.steps_of(stage.epochs) if stage.epochs else stage.steps

    def samples(self, step: int) -> list[Sample]:
        """Return the samples of step ``step``, from 0: those of its own data first, or the rows that hold them."""
        samples = [sample for number in self._batches.batch(step) for sample in self._own.samples(number)]
        if self._revisited is not None:
            earlier = self._revisited[0]
            samples += [sample for number in self._earlier.batch(step) for sample in earlier.samples(number)]
        if self.stage.packing and self._row_tokens is not None:
            return packed(samples, row_tokens=self._row_tokens)
        return samples

    def validation_due(self, step: int) -> bool:
        """Return whether the loss on held-out examples is measured after so many steps."""
        return bool(self._held_out) and (step == self.steps or step % self.stage.validation_every == 0)

    def validation_samples(self) -> Iterator[list[Sample]]:
        """The held-out examples, a batch at a time."""
        size = max(1, self.stage.batch_size)
        for first in range(0, len(self._held_out), size):
            part = self._held_out[first : first + size]
            yield [sample for number in part for sample in self._own.samples(number)]

    def learning_rate(self, step: int) -> float:
        stage = self.stage
        return stage.learning_rate * warmup_then_decay(
            step, self.steps, warmup_updates=int(stage.warmup * self.steps), floor=stage.final_share, shape=stage.decay
        )

    def weight_decay(self, step: int) -> float | None:
        """Return AdamW's weight decay of step ``step``, from 0; None where the stage keeps the one it began with."""
        first, last = self.stage.weight_decay, self.stage.final_weight_decay
        return None if last is None else linear_between(first, last, step=step, steps=self.steps)


def _held_out(count: int, share: float, seed: int) -> tuple[list[int], Sequence[int]]:
    """The numbers that are held out, and the others.  At least one is trained on."""
    if not share:
        return [], range(count)
    order = np.random.Generator(np.random.Philox(key=[seed, _VALIDATION_EPOCH])).permutation(count)
    most = min(MOST_VALIDATION, round(count * share), count - 1)
    held_out = sorted(order[:most].tolist())
    kept = set(held_out)
    return held_out, [number for number in range(count) if number not in kept]


@dataclass(frozen=True)
class StageSources:
    """They say where the data of stages come from.  What belongs to an environment or to a renderer is handed in."""

    demonstrations: Callable[[Demonstrations], Iterator[Trajectory]]
    reader: Callable[[Stage], LineReader]
    """How a line of a stage's chat or text becomes token ids."""
    folder: Path
    """Below it lie the files."""


@dataclass(frozen=True)
class FilesRead:
    """How far the files of the stages are read."""

    is_done: bool
    digests: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each file that is read to its end, by its name in the spec."""


@dataclass(frozen=True)
class StageBegun:
    """It says how long a stage turns out to be, once its data are there."""

    steps: int
    counts: dict[str, int] = field(default_factory=dict)
    """What became of the documents of its file, by the names of ``examples.Counts``; empty without a file."""


class SupervisedStages:
    """The stages of a recipe with their data.  Raises BadRecording for recordings that cannot be learned from."""

    def __init__(
        self, stages: Sequence[Stage], sources: StageSources, *, model: Model, context: int, seed: int
    ) -> None:
        self._stages, self._sources, self._seed, self._context = stages, sources, seed, context
        self._recorded = {
            number: recorded_trajectories(stage.data, model, sources.folder)
            for number, stage in enumerate(stages)
            if isinstance(stage.data, Recordings)
        }
        self._files = {
            number: self._file_of(number, stage, stage.data, context)
            for number, stage in enumerate(stages)
            if isinstance(stage.data, Chat | Text)
        }
        self._held: dict[int, tuple[HeldExamples, list[bool]]] = {}
        self._batches: dict[int, StageBatches] = {}
        for number in self._recorded:
            self._trajectory_examples(number)

    def read_on(self) -> FilesRead:
        """Read the files of chat and text a little further, in the order of their stages."""
        for file in self._files.values():
            if not file.read_on(INDEXED_BYTES):
                return FilesRead(is_done=False)
        return FilesRead(True, self._digests())

    def _digests(self) -> dict[str, str]:
        """By the names of the files in the spec, so that a run may go on where they lie elsewhere."""
        digests = {}
        for number, stage in enumerate(self._stages):
            if isinstance(stage.data, Recordings):
                digests[stage.data.file] = digest_of(file_below(self._sources.folder, stage.data.file, FIELD))
            elif isinstance(stage.data, Chat | Text):
                digests[stage.data.file] = str(self._files[number].digest)
        return digests

    def read(self) -> None:
        """Read all of them."""
        while not self.read_on().is_done:
            pass

    def counts(self, number: int) -> dict[str, int]:
        """Return what became of the documents of a stage's file; empty for a stage without one."""
        return vars(self._files[number].counts) if number in self._files else {}

    def batches(self, number: int) -> StageBatches:
        """Those of stage ``number``, from 0; the files must have been read."""
        if number not in self._batches:
            self._batches = {number: self._batches_of(number)}
        return self._batches[number]

    def trajectories(self, number: int) -> Iterator[Trajectory]:
        """Demonstrations or recordings of a stage, with the turns marked that it does not learn."""
        stage = self._stages[number]
        if isinstance(stage.data, Demonstrations):
            shown: Iterator[Trajectory] | list[Trajectory] = self._sources.demonstrations(stage.data)
        else:
            shown = self._recorded[number]
        return (with_turn_masks(trajectory, stage) for trajectory in shown)

    def _batches_of(self, number: int) -> StageBatches:
        stage, revisited = self._stages[number], None
        if stage.revisiting is not None:
            earlier = stage.revisiting.stage - 1
            examples = self._examples(earlier)
            _, chosen = _held_out(len(examples.tokens), self._stages[earlier].validation_share, self._seed + earlier)
            if stage.revisiting.keep == "verified":
                verified = self._trajectory_examples(earlier)[1]
                chosen = [place for place in chosen if verified[place]]
            if not chosen:
                raise RunFailed(
                    f'recipe.stages.{number}.revisiting.keep = "verified": no trajectory of stage {earlier + 1} is; '
                    'use keep = "all"'
                )
            revisited = examples, chosen
        return StageBatches(
            stage, self._examples(number), revisited, seed=self._seed + number, row_tokens=self._context
        )

    def _examples(self, number: int) -> Examples:
        return self._files[number] if number in self._files else self._trajectory_examples(number)[0]

    def _trajectory_examples(self, number: int) -> tuple[HeldExamples, list[bool]]:
        """The trajectories without those of which every turn is masked; and whether each is verified."""
        if number not in self._held:
            held, verified, count = [], [], 0
            for trajectory in self.trajectories(number):
                count += 1
                samples = samples_from_trajectory(trajectory)
                if any(sample.learned_length for sample in samples):
                    held.append(samples)
                    verified.append(is_verified(trajectory))
            if not held:
                raise BadRecording(f"{count} recorded trajectories, all of whose turns are masked")
            self._held[number] = HeldExamples(held), verified
        return self._held[number]

    def _file_of(self, number: int, stage: Stage, data: Chat | Text, context: int) -> FileExamples:
        field = f"recipe.stages.{number}.data"
        return FileExamples(
            file_below(self._sources.folder, data.file, f"{field}.file"),
            self._sources.reader(stage),
            field=field,
            context_tokens=context,
            too_long=data.too_long,
            sha256=data.sha256,
        )


_STRICTEST = Stage(mask_errors=True, mask_irrelevant=True)


def is_verified(trajectory: Trajectory) -> bool:
    """It succeeded, and neither Err(k) nor Rel(k) finds anything in it: what the second stage of ALE revisits."""
    return trajectory.success and with_turn_masks(trajectory, _STRICTEST) is trajectory
