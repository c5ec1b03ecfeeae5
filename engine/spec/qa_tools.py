"""Tools that an environment over a dataset may offer beside the built-in ones (docs/environments.md, "qa")."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.dataset_preparation import HELDOUT, TRAIN, SplitName
from engine.spec.impossible import impossible
from engine.spec.strict import Strict


class Search(Strict):
    """The tool ``search``: the passages of a team's own texts that fit some words best, by BM25 (k1 = 1.2, b = 0.75).

    The texts are the prompts or messages of one split of the run's own dataset version; answers, tests and metadata
    are never read.
    """

    split: SplitName = "corpus"
    """Neither ``train`` nor ``heldout``."""
    results: int = Field(default=3, ge=1, le=50)
    """Passages of one call at most."""
    passage_characters: int = Field(default=600, ge=50, le=20_000)
    """Longer texts are divided into passages that are no longer than this, where words end."""

    @model_validator(mode="after")
    def _questions_are_no_corpus(self) -> Self:
        if self.split in (TRAIN, HELDOUT):
            remedy = "put what may be searched into a split of its own, e.g. corpus"
            raise impossible("split", self.split, "its rows are the questions themselves", remedy)
        return self


class SandboxFile(Strict):
    """A file that is written into a sandbox before anything runs in it."""

    path: Annotated[str, StringConstraints(pattern=r"^[\w-][\w.-]*(/[\w-][\w.-]*)*$", max_length=200)]
    """Below /work."""
    content: str = Field(max_length=2**18)


class McpServer(Strict):
    """A server of the Model Context Protocol, started in the episode's sandbox and spoken with over its pipes.

    It may reach what ``environment.sandbox.egress`` allows, and nothing else.  Its tools are listed before the first
    episode, and must be the same in every one.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]{0,15}$")]
    """Its tools are called ``<name>_<tool>``."""
    command: list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]] = Field(min_length=1, max_length=64)
    """Program and arguments, one a line, started in /work.  A program of your own may be one of
    ``environment.files``."""
    start_timeout_s: float = Field(default=10.0, gt=0, le=120)
    """It bounds the start and the listing of the tools, in seconds."""
    call_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """It bounds one call, in seconds."""

    @model_validator(mode="after")
    def _tools_have_names_of_their_own(self) -> Self:
        if self.name in ("read", "write", "edit"):
            problem = "its tools could have the names of the tools for files"
            raise impossible("name", self.name, problem, "give it another name")
        return self
