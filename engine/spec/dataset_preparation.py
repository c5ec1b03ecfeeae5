"""How files of a team become rows: which column is what, which rows are held out, what is done about duplicates."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.strict import Strict

MOST_COLUMNS = 1000
MOST_SPLITS = 20
TRAIN, HELDOUT = "train", "heldout"

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=300)]
SplitName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,49}$")]
"""It names files too."""


class ColumnMapping(Strict):
    """Which column holds which part of a row; a column that is not named is left out."""

    id: ColumnName | None = None
    """Unique in the dataset.  None: each row is named by its content."""
    prompt: ColumnName | None = None
    """A text.  Exactly one of prompt and messages."""
    messages: ColumnName | None = None
    """A list of role and content; in CSV as JSON."""
    answer: ColumnName | None = None
    tests: ColumnName | None = None
    image: ColumnName | None = None
    """An OCI reference, such as ``python:3.11`` or ``ghcr.io/org/name@sha256:...``."""
    group: ColumnName | None = None
    """Rows with equal values stand in one split."""
    split: ColumnName | None = None
    """The name of the row's split; needed where splits are given by a column, and only there."""
    metadata: ColumnName | None = None
    """A JSON object; in CSV as its text."""
    metadata_keys: list[ColumnName] = Field(default=[], max_length=100)
    """Further columns that are kept in the metadata, each under its own name."""

    @model_validator(mode="after")
    def _asks_in_one_way(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "both" if self.prompt else "neither"
            remedy = "name the column that holds what the policy is asked, as one of the two"
            raise impossible("prompt", given, "a row has exactly one of prompt and messages", remedy)
        return self

    @property
    def parts(self) -> dict[str, str]:
        """Part of the row -> column; without split and metadata keys."""
        names = ("id", "prompt", "messages", "answer", "tests", "image", "group", "metadata")
        return {name: column for name in names if (column := getattr(self, name)) is not None}

    @property
    def columns(self) -> list[str]:
        """Every column that is named, once."""
        named = [*self.parts.values(), *([self.split] if self.split else []), *self.metadata_keys]
        return list(dict.fromkeys(named))


class OneSplit(Strict):
    """All rows stand in one split."""

    kind: Literal["one"] = "one"
    name: SplitName = TRAIN


class SplitsByFile(Strict):
    """Each file is a split, by its name without the ending."""

    kind: Literal["file"] = "file"


class SplitsByColumn(Strict):
    """Each row says its split, in the column that the mapping names."""

    kind: Literal["column"] = "column"


class SplitShare(Strict):
    name: SplitName
    share: float = Field(gt=0, le=1)
    """The share of the rows, or of the groups; the shares of all splits together are 1."""


class SplitsByShare(Strict):
    """Rows are dealt out by a hash of seed and content: equal contents, and rows of one group, stand in one split,
    and a row stays where it is when others come or go."""

    kind: Literal["share"] = "share"
    seed: int = Field(default=0, ge=0, lt=2**31)
    splits: list[SplitShare] = Field(
        default=[SplitShare(name=TRAIN, share=0.95), SplitShare(name=HELDOUT, share=0.05)],
        min_length=2,
        max_length=MOST_SPLITS,
    )

    @model_validator(mode="after")
    def _shares_are_all(self) -> Self:
        if abs(sum(split.share for split in self.splits) - 1) > 1e-6:
            total = round(sum(split.share for split in self.splits), 6)
            raise impossible("splits", total, "the shares together are not 1", "choose shares that add up to 1")
        if len({split.name for split in self.splits}) < len(self.splits):
            raise impossible("splits", "(names)", "two splits have one name", "give each a name of its own")
        return self


Splitting = Annotated[OneSplit | SplitsByFile | SplitsByColumn | SplitsByShare, Field(discriminator="kind")]


class Duplicates(Strict):
    """What is done with rows of different splits that ask the same, or nearly so: a policy would be examined on what it
    was trained on."""

    across_splits: Literal["refuse", "drop", "report"] = "refuse"
    """``drop`` leaves them out of the largest split that has them, so that what is held out stays whole."""
    similarity: float | None = Field(default=0.8, ge=0.5, le=1)
    """From which share of common word triples (Jaccard) on two rows are near-duplicates.  None: only equal texts are
    looked for, after case and white space are evened out."""


class Preparation(Strict):
    """Everything that decides what the rows of a version are."""

    mapping: ColumnMapping
    splitting: Splitting = OneSplit()
    duplicates: Duplicates = Duplicates()

    @model_validator(mode="after")
    def _split_column_is_named_where_it_is_read(self) -> Self:
        reads, names = self.splitting.kind == "column", self.mapping.split is not None
        if reads and not names:
            remedy = "set mapping.split, or choose another splitting"
            raise impossible("mapping.split", "(missing)", "splits are given by a column, and none is named", remedy)
        if names and not reads:
            remedy = 'set splitting.kind = "column", or leave mapping.split out'
            message = f"splits are not given by a column (splitting.kind = {self.splitting.kind})"
            raise impossible("mapping.split", self.mapping.split, message, remedy)
        return self
