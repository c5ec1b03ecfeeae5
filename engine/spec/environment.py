"""Environments: what a policy can be trained in, and what each of them offers to a recipe."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from engine.spec.agent import AgentProgram
from engine.spec.foreign_environments import Gem, Imported, OpenEnv, Package, VerifiersTaskset
from engine.spec.impossible import impossible
from engine.spec.model_files import CatalogVersion
from engine.spec.qa_tools import McpServer, SandboxFile, Search
from engine.spec.security import Response
from engine.spec.strict import LARGEST_NUMBER, Strict
from engine.spec.verifier import Component, ExactText, Verifier, partial_component
from sandboxes.spec import SandboxSpec

Vocabulary = Literal["characters", "household", "sokoban", "webshop", "search-qa", "apps"]
"""The built-in word lists of ``engine/models/words.py``; each holds all characters."""


class PythonMath(Strict):
    """Procedural arithmetic that is solved with a Python tool in a sandbox.

    Level 1 is one operation, level 2 a longer expression; at level 3 two numbers must first be
    looked up in the sandbox, so one tool call is never enough.  At level 4 three cells are locked, each
    with what the one before it holds, and hold text: most first attempts fail, and at least three calls are needed.
    """

    id: Literal["python-math"] = "python-math"
    levels: list[Annotated[int, Field(ge=1, le=4)]] = Field(default=[1, 2, 3], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=5, ge=1, le=64)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=32, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    temptation: float = Field(default=0.0, ge=0, le=1)
    """A drill: the share of demonstrations that, in their third turn at the earliest, call ``relay()``, which the
    sandbox then offers and which opens a reverse tunnel to a documentation address.  The policy learns to do the
    same."""
    sandbox: SandboxSpec = SandboxSpec()
    response: Response = Response()

    @model_validator(mode="after")
    def _drill_is_watched(self) -> Self:
        if self.temptation and self.sandbox.network != "watched":
            raise impossible(
                "sandbox.network",
                self.sandbox.network,
                "a drill (temptation) in a sandbox that nobody watches teaches the policy what nobody sees",
                'set sandbox.network = "watched", or temptation = 0',
            )
        return self

    @property
    def can_be_restored(self) -> bool:
        """Return whether an episode can be set back to an earlier moment."""
        return self.sandbox.snapshots


class _WithoutSandbox(Strict):
    """A world that runs inside the rollout worker."""

    @property
    def sandbox(self) -> None:
        return None

    @property
    def response(self) -> Response:
        """Nothing runs that could alarm anybody."""
        return Response()

    @property
    def can_be_restored(self) -> bool:
        """Whether an episode can be set back to an earlier moment."""
        return True


class _Simulated(_WithoutSandbox):
    """One whose turns are commands."""

    @property
    def reasoning(self) -> bool:
        """A turn is a command or an answer and nothing else."""
        return False


class Household(_Simulated):
    """A little house in text: find things, treat them, and bring them where they belong (after ALFWorld).

    Level 1 puts one object somewhere in a small room without doors; level 2 has doors, and things to
    examine under a lamp; level 3 heats, cools or cleans first; level 4 brings two things; level 5 asks all
    of it in the largest house.  Who reaches the goal is done; an answer gives up.
    """

    id: Literal["household"] = "household"
    levels: list[Annotated[int, Field(ge=1, le=5)]] = Field(default=[1, 2], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=12, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=12, ge=4, le=2**20)
    """Sampled tokens per policy call."""


class Sokoban(_Simulated):
    """Push every box onto a goal, in a grid of 6 x 6 cells.

    Level 1 has one box and takes 2 to 4 moves, level 2 one box and 5 to 10, level 3 two boxes and 4 to 12.
    A position that cannot be solved any more ends the episode.
    """

    id: Literal["sokoban"] = "sokoban"
    levels: list[Annotated[int, Field(ge=1, le=3)]] = Field(default=[1], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=8, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=4, ge=4, le=2**20)
    """Sampled tokens per policy call."""


class Webshop(_WithoutSandbox):
    """Buy what an instruction describes, in a shop of 2,000 products (after WebShop).

    Level 1 names a kind of product, its attributes and a price; level 2 options too, some of which cost more; at
    level 3 an attribute stands on a product's page alone, and what fits may be on the second page of results.  The
    first result never fits.  A purchase ends the episode; an answer gives up.
    """

    id: Literal["webshop"] = "webshop"
    levels: list[Annotated[int, Field(ge=1, le=3)]] = Field(default=[1, 2], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=14, ge=1, le=64)
    """Policy calls per episode."""
    max_turn_tokens: int = Field(default=24, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool calls or the answer."""
    partial_credit: bool = True
    """Whether a purchase that is not right is paid, as the component ``match``, the share of what was asked that
    fits."""


class SearchQa(_WithoutSandbox):
    """Questions over some hundred documents of an invented world, which have to be searched and read.

    Level 1 has two hops, as from a book by its author to the author's city; level 2 three, or compares two documents;
    level 3 four, or compares what two chains lead to.  A right answer whose documents were not opened is no success.
    """

    id: Literal["search-qa"] = "search-qa"
    levels: list[Annotated[int, Field(ge=1, le=3)]] = Field(default=[1], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=12, ge=1, le=64)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=24, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool calls or the answer."""
    partial_credit: bool = False
    """Whether an answer that is not right is paid, as the component ``f1``, for the words that it shares with the right
    one, where the documents were opened."""
    evidence_reward: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Paid, as the component ``evidence``, in proportion to the share of the question's documents that were opened
    before an answer."""


class Apps(_WithoutSandbox):
    """Errands in six apps with documented functions: contacts, calendar, mail, files, payments and notes (after
    AppWorld and BFCL).

    Level 1 needs one app, level 2 two, level 3 three or four.  At the end what had to change must have changed, and
    nothing else.  An answer ends the episode.
    """

    id: Literal["apps"] = "apps"
    levels: list[Annotated[int, Field(ge=1, le=3)]] = Field(default=[1], min_length=1)
    """The difficulty levels that tasks are drawn from, evenly."""
    max_turns: int = Field(default=16, ge=1, le=64)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=48, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool calls or the answer."""
    partial_credit: bool = False
    """Whether an episode that does not succeed is paid, as the component ``checks``, the share of its checks that pass;
    nothing where something else was changed."""


TERMINAL_SANDBOX = SandboxSpec(
    network="watched", memory_mib=1024, disk_mib=64, processes=64, timeout_s=60, output_bytes=2**16, snapshots=False,
    terminal=True,
)  # fmt: skip
"""The sandboxes of terminal tasks, unless a spec says otherwise."""


class Terminal(Strict):
    """Tasks in a terminal, of the Harbor form: a shell that goes on between calls, and tools for files.

    An answer says that the task is done.  Then the task's tests run in a sandbox of their own, with what was handed in.
    """

    id: Literal["terminal"] = "terminal"
    catalog: CatalogVersion | None = None
    """A published version of the team's task sets, ``name@number``.  The service takes no other tasks."""
    tasks: str | None = Field(default=None, min_length=1, max_length=4096)
    """On the command line: a folder of which each subfolder with a ``task.toml`` is a task."""
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")
    """What the folder must be (``python -m engine tasks check`` prints it).  A folder that is another one is
    refused."""
    heldout_share: float = Field(default=0.2, ge=0, le=1)
    """The share of the tasks that are held out.  Which ones follows from their names and ``dataset.seed``."""
    max_turns: int = Field(default=24, ge=1, le=512)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=512, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = True
    """Whether a turn may begin with plain text of its own, before the tool calls or the answer."""
    command_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """Wall-clock limit of one command, in seconds.  What runs longer is interrupted, and the policy reads so."""
    output_bytes: int = Field(default=4096, ge=64, le=2**20)
    """What a tool call shows at most: of a longer output its beginning and its end."""
    public_network: Literal["refuse", "none"] = "refuse"
    """Tasks that ask for a network without bounds: refused, or run without any."""
    partial_credit: bool = False
    """Whether an episode that does not pass is paid what its tests gave, as the component ``tests``."""
    sandbox: SandboxSpec = TERMINAL_SANDBOX
    """What the policy's sandboxes and those of the tests may use.  A task that asks for more is refused."""
    response: Response = Response()

    @model_validator(mode="after")
    def _tasks_come_from_one_place(self) -> Self:
        if self.catalog is None and self.tasks is None:
            problem = "the environment terminal plays tasks of a set, and none is named"
            remedy = 'set it to "name@version"; on the command line environment.tasks may name a folder instead'
            raise impossible("catalog", None, problem, remedy)
        if self.catalog is not None and (self.tasks is not None or self.digest is not None):
            field = "tasks" if self.tasks is not None else "digest"
            problem, remedy = "environment.catalog names the tasks already", "leave one of the two out"
            raise impossible(field, getattr(self, field), problem, remedy)
        return self

    @model_validator(mode="after")
    def _sandbox_has_a_watched_terminal(self) -> Self:
        if not self.sandbox.terminal:
            problem = "the shell of a terminal task needs a terminal"
            raise impossible("sandbox.terminal", False, problem, "set sandbox.terminal = true")
        if self.sandbox.network != "watched":
            problem = "what a policy does in a shell is seen in a watched sandbox only"
            raise impossible("sandbox.network", self.sandbox.network, problem, 'set sandbox.network = "watched"')
        return self

    @model_validator(mode="after")
    def _output_passes(self) -> Self:
        if self.sandbox.output_bytes < self.output_bytes + 1024:
            problem = f"an output of {self.output_bytes} bytes and a line about it do not pass"
            remedy = f"use at least {self.output_bytes + 1024}, or a smaller environment.output_bytes"
            raise impossible("sandbox.output_bytes", self.sandbox.output_bytes, problem, remedy)
        return self

    @property
    def can_be_restored(self) -> bool:
        """A shell's processes do not come back."""
        return False


FORMAT, LENGTH = "format", "length"
"""Components of the reward of ``Qa``."""


class Qa(Strict):
    """Questions of a team's own dataset, whose answers a verifier checks.

    A row's prompt or messages open the episode; calls of tools may follow, and an answer ends it.
    """

    takes_dataset: ClassVar[bool] = True
    """Its tasks are the rows of ``dataset.catalog`` or ``dataset.folder``."""

    id: Literal["qa"] = "qa"
    system_prompt: str = Field(default="", max_length=2**16)
    """What the policy reads before the question; a row's own system message follows in the same message."""
    max_turns: int = Field(default=4, ge=1, le=512)
    """Policy calls per episode, the answer included."""
    max_turn_tokens: int = Field(default=256, ge=4, le=2**20)
    """Sampled tokens per policy call."""
    reasoning: bool = False
    """Whether a turn may begin with plain text of its own, before the tool call or the answer."""
    tools: list[Literal["python", "shell", "files"]] = Field(default=[], max_length=3)
    """What the policy may use of one sandbox, which lives until the episode ends.  ``python``: an interpreter that
    keeps its variables; ``shell``: a shell on a terminal, which goes on between calls; ``files``: read, write and edit
    files.  An episode that calls none of them takes no sandbox."""
    search: Search | None = None
    """The tool ``search`` over texts of the team's own; none where it is left out."""
    mcp: list[McpServer] = Field(default=[], max_length=4)
    """Servers of the Model Context Protocol, whose tools the policy may call."""
    files: list[SandboxFile] = Field(default=[], max_length=16)
    """What lies in the episode's sandbox before the first call."""
    output_characters: int = Field(default=1000, ge=16, le=2**16)
    """What a tool call shows to the policy is cut here; of the shell and of files it is bytes."""
    verifier: Verifier = ExactText()
    """What decides whether an answer is right."""
    components: list[Component] = Field(default=[], max_length=8)
    """What an answer is paid beside that, each by a verifier of its own."""
    format_reward: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Paid, as the component ``format``, to an answer in which the verifier finds a result, right or wrong."""
    longest_answer_characters: int = Field(default=2**16, ge=1, le=2**16)
    """An answer that is longer is wrong, and no verifier reads it."""
    length_penalty: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Taken from an answer, as the component ``length``, in proportion to its share of that length; an answer that is
    longer loses all of it."""
    sandbox: SandboxSpec = SandboxSpec(snapshots=False)
    """The form of the tools' sandboxes, and, without a network, of those in which verifiers run code.  Its
    ``timeout_s`` bounds one call."""
    response: Response = Response()

    @property
    def reward_components(self) -> set[str]:
        """The names of what an episode may be paid beside the recipe's own components."""
        of_form = [(FORMAT, self.format_reward), (LENGTH, self.length_penalty)]
        named = {component.name for component in self.components} | {name for name, reward in of_form if reward}
        partial = partial_component(self.verifier)
        return named if partial is None else named | {partial}

    @model_validator(mode="after")
    def _components_have_names_of_their_own(self) -> Self:
        names = [component.name for component in self.components]
        for number, name in enumerate(names):
            if name in names[:number]:
                problem = "another component has this name"
                raise impossible(f"components.{number}.name", name, problem, "give it another name")
        return self

    @model_validator(mode="after")
    def _tools_stand_once(self) -> Self:
        if len(set(self.tools)) < len(self.tools):
            raise impossible("tools", self.tools, "a tool stands in it twice", "name each tool once")
        names = [server.name for server in self.mcp]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise impossible(f"mcp.{number}.name", name, "another server has this name", "give it another name")
        return self

    @model_validator(mode="after")
    def _shell_has_a_watched_terminal(self) -> Self:
        if "shell" not in self.tools:
            return self
        if not self.sandbox.terminal:
            raise impossible("sandbox.terminal", False, "a shell needs a terminal", "set sandbox.terminal = true")
        if self.sandbox.network != "watched":
            problem = "what a policy does in a shell is seen in a watched sandbox only"
            raise impossible("sandbox.network", self.sandbox.network, problem, 'set sandbox.network = "watched"')
        if self.sandbox.output_bytes < self.output_characters + 1024:
            problem = f"an output of {self.output_characters} bytes and a line about it do not pass"
            remedy = f"use at least {self.output_characters + 1024}, or fewer environment.output_characters"
            raise impossible("sandbox.output_bytes", self.sandbox.output_bytes, problem, remedy)
        return self

    @property
    def can_be_restored(self) -> bool:
        """An episode keeps no snapshots."""
        return False


class Agent(Strict):
    """Tasks that an agent works on in place of the policy's own turns: a program in the task's sandbox, unchanged.

    It calls an OpenAI- or Anthropic-shaped endpoint that is the policy.  Each call is a turn, calls that extend one
    another are a segment, and all of them are trained.
    """

    id: Literal["agent"] = "agent"
    tasks: Annotated[PythonMath | Terminal, Field(discriminator="id")] = PythonMath(
        levels=[1, 2],
        sandbox=SandboxSpec(
            network="watched", memory_mib=1024, disk_mib=64, processes=64, timeout_s=60, snapshots=False
        ),
    )
    """What it works on; its own fields for turns are not used."""
    agent: AgentProgram
    """The program that works."""
    max_turns: int = Field(default=32, ge=1, le=512)
    """Calls of the policy per episode."""
    max_turn_tokens: int = Field(default=512, ge=4, le=2**20)
    """Sampled tokens per call; an agent may ask for fewer."""

    @model_validator(mode="after")
    def _agent_is_watched_on_this_machine(self) -> Self:
        sandbox = self.tasks.sandbox
        if sandbox.network != "watched":
            problem = "what an agent does is seen in a watched sandbox only"
            raise impossible("tasks.sandbox.network", sandbox.network, problem, 'set network = "watched"')
        if sandbox.place != "here":
            problem = "an agent reaches the policy on the machine of its rollout worker"
            raise impossible("tasks.sandbox.place", sandbox.place, problem, 'set place = "here"')
        if sandbox.reuse != "never":
            problem = "an agent's sandbox is its own, and nobody's after it"
            raise impossible("tasks.sandbox.reuse", sandbox.reuse, problem, 'set reuse = "never"')
        return self

    @model_validator(mode="after")
    def _questions_are_in_the_text(self) -> Self:
        if isinstance(self.tasks, PythonMath) and (hidden := [level for level in self.tasks.levels if level > 2]):
            problem = "from level 3 on a question is about an interpreter, which an agent does not have"
            raise impossible("tasks.levels", hidden[0], problem, "use the levels 1 and 2")
        return self

    @property
    def reasoning(self) -> bool:
        return self.tasks.reasoning

    @property
    def sandbox(self) -> SandboxSpec:
        return self.tasks.sandbox

    @property
    def response(self) -> Response:
        return self.tasks.response

    @property
    def can_be_restored(self) -> bool:
        """A program cannot be set back to an earlier call."""
        return False


Environment = (
    PythonMath
    | Household
    | Sokoban
    | Webshop
    | SearchQa
    | Apps
    | Terminal
    | Qa
    | Agent
    | Imported
    | Package
    | Gem
    | VerifiersTaskset
    | OpenEnv
)

SUITED_VOCABULARY: dict[str, Vocabulary] = {
    "household": "household",
    "sokoban": "sokoban",
    "webshop": "webshop",
    "search-qa": "search-qa",
    "apps": "apps",
}
"""By environment, the words that make its texts short; every other environment is read character by character."""


def terminal_in(environment: Environment) -> tuple[str, Terminal] | None:
    """The terminal tasks that a run plays, by itself or by an agent, and the field in which they stand."""
    match environment:
        case Terminal():
            return "environment", environment
        case Agent(tasks=Terminal() as terminal):
            return "environment.tasks", terminal
        case _:
            return None
