"""What of an episode the policy has before it (AgentEvolver, section 6), and habits of agents (ALE, section 2.3)."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.requirement import Part, Requirement, Requirements, absent, none_of
from engine.spec.strict import Strict

Template = Literal["causal", "reasoning", "sliding-window", "self-managing"]


def _rewrites(context: "Context") -> bool:
    return context.rewrites


class Context(Part):
    """How the policy's own episodes keep their context.  Absent: everything that was read and sampled stays."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "purification",
            absent,
            "a correction is put behind the history in which the call failed, which this context loses",
            'use context.template = "causal" without compact_tokens and sub-agents, or remove purification',
            field="context.template",
            when=_rewrites,
        ),
        Requirement(
            "expert_starts",
            absent,
            "a rollout that begins inside an expert's trajectory reads on behind it, and this context is written again",
            'use context.template = "causal" without compact_tokens and sub-agents, or remove expert_starts',
            field="context.template",
            when=_rewrites,
        ),
    )
    requires_of_run: ClassVar[Requirements] = (
        Requirement(
            "environment.id",
            none_of("agent"),
            "an agent owns its context",
            "remove it, or train without an agent",
            field="recipe.context",
        ),
        Requirement(
            "environment.max_turns",
            lambda turns, part: turns > part.window_turns,
            "with environment.max_turns = {value} nothing ever leaves a window of {part.window_turns} turns",
            "use fewer than {value}",
            field="recipe.context.window_turns",
            when=lambda context: context.template == "sliding-window",
        ),
        Requirement(
            "environment.reasoning",
            lambda reasoning, part: bool(reasoning),
            "the built-in model has thoughts only where its environment lets it, and here it does not",
            "use environment.reasoning = true, another template, or a pretrained model",
            field="recipe.context.template",
            when=lambda context: context.template == "reasoning",
            given="model.layers",
        ),
    )
    subagent_turns: int = Field(default=0, ge=0, le=512)
    """How many turns a sub-agent may take, which the policy begins with a task of its own, and which is the policy too,
    with another context: it has the environment's tools, and its answer comes back as a result; 0: there are none.
    Its turns count in ``environment.max_turns``."""
    subagent_prompt: str = Field(default="", max_length=20_000)
    """What stands before a sub-agent's task."""
    system_prompt: str = Field(default="", max_length=20_000)
    """What stands before all that the environment says; in front of its own system message, where it has one."""
    workflow: list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]] = Field(
        default_factory=list, max_length=64
    )
    """Steps to work by, which stand behind ``system_prompt`` with their numbers."""
    compact_tokens: int = Field(default=0, ge=0, le=2**24)
    """Once a context is longer, turns before the last ``window_turns`` leave it, and a note at the end of the opening
    says what was called in them and what came of it; 0: never."""
    compact_characters: int = Field(default=80, ge=1, le=10_000)
    """How many characters of a call, and of what came of it, such a note has."""
    template: Template = "causal"
    """``causal``: everything stays.  ``reasoning``: thoughts of earlier turns leave.  ``sliding-window``: the opening
    and the last turns stay.  ``self-managing``: the policy has tools to note, fold and drop.  A context that is written
    again begins another segment of the trajectory."""
    memory: bool = False
    """Whether the policy may keep notes, which stay when the turns that made them leave.  A context that manages itself
    has them anyway."""
    manage_tokens: int = Field(default=0, ge=0, le=2**24)
    """Once a context that manages itself is longer, what the policy reads says so; 0: never."""
    window_turns: int = Field(default=4, ge=1, le=512)
    """How many turns a sliding window shows, or a compaction leaves."""
    window_note: str = Field(default="", max_length=2000)
    """What the opening says once turns have left the window; empty: nothing."""
    result_characters: int = Field(default=0, ge=0, le=2**24)
    """How many characters of a tool's result are read, from its beginning and its end alike; 0: all of them."""
    reminder: str = Field(default="", max_length=2000)
    """What is added to what the policy reads, every ``reminder_turns``; empty: nothing."""
    reminder_turns: int = Field(default=4, ge=1, le=512)
    """The turns between two reminders."""
    repeated_calls: int = Field(default=0, ge=0, le=512)
    """From so many equal calls in a row on, what the policy reads says so; 0: never."""

    @property
    def rewrites(self) -> bool:
        """Whether a context may be another than the one before with something behind it."""
        return self.template != "causal" or self.compact_tokens > 0 or self.subagent_turns > 0

    @property
    def remembers(self) -> bool:
        """Whether the policy has a tool to keep notes."""
        return self.memory or self.template == "self-managing"

    @model_validator(mode="after")
    def _leaves_out_in_one_way(self) -> Self:
        if self.compact_tokens and self.template == "sliding-window":
            problem = "turns leave a sliding window before a context could be compacted"
            raise impossible("compact_tokens", self.compact_tokens, problem, 'use 0, or template = "causal"')
        if self.compact_tokens and self.template == "self-managing":
            problem = "the policy itself says what leaves this context"
            raise impossible("compact_tokens", self.compact_tokens, problem, "use 0, and manage_tokens to remind it")
        if self.subagent_prompt and not self.subagent_turns:
            problem = "there are no sub-agents to read it"
            raise impossible("subagent_prompt", self.subagent_prompt[:60], problem, "give subagent_turns, or remove it")
        if self.manage_tokens and self.template != "self-managing":
            problem, remedy = "the policy has no tools for this context", 'use 0, or template = "self-managing"'
            raise impossible("manage_tokens", self.manage_tokens, problem, remedy)
        if self.memory and not (self.compact_tokens or self.template in ("sliding-window", "self-managing")):
            problem = "no turn leaves this context, so its notes would stand there anyway"
            raise impossible("memory", True, problem, 'use false, compact_tokens, or template = "sliding-window"')
        return self


class ContextRecord(Strict):
    """What became of an episode's context."""

    trimmed_characters: int = Field(default=0, ge=0)
    """The characters of tools' results, which the policy did not read."""
    reminders: int = Field(default=0, ge=0)
    repeated_calls: int = Field(default=0, ge=0)
    """Turns on which the policy was told that it repeats itself."""
    thoughts: int = Field(default=0, ge=0)
    """Turns that begin with a thought."""
    notes: int = Field(default=0, ge=0)
    """Notes that the policy kept."""
    left_turns: int = Field(default=0, ge=0)
    """Turns that the policy folded or dropped."""
    manage_prompts: int = Field(default=0, ge=0)
    """How often the policy was told that its context is long."""
    subagents: int = Field(default=0, ge=0)
    """Sub-agents that it began."""
    numbered_turns: int = Field(default=0, ge=0)
    """Turns whose number stands behind what was read of them."""

    @property
    def changes_results(self) -> bool:
        """Whether the policy read something else than its tools returned."""
        added = self.reminders or self.repeated_calls or self.manage_prompts or self.numbered_turns
        return bool(self.trimmed_characters or added)
