"""Where an environment scores by running code: a fresh sandbox, with chosen files of the policy's sandbox.

Whatever a policy has touched may lie: the interpreter that reports how a cell ended, the tests that were put beside its
files, a process that waits for them.  Files are all that it hands in, and here they are all that is taken over: regular
ones, by name, read by the agent when every process of the source is dead.  See docs/sandboxes.md, "What a sandbox says
of itself".
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from sandboxes.interface import Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from sandboxes.tree import TreeLimits

DEFAULT_LIMITS = TreeLimits()


class Sandboxes(Protocol):
    """``sandboxes.pool.Pool`` is one."""

    def acquire(self) -> AbstractAsyncContextManager[Sandbox]: ...


@asynccontextmanager
async def scoring_sandbox(
    fresh: SandboxSpec | Sandboxes, source: Sandbox, *, paths: Iterable[str], limits: TreeLimits = DEFAULT_LIMITS
) -> AsyncIterator[Sandbox]:
    """A sandbox in which nothing of ``source`` is but the files and folders ``paths`` of its /work.

    Every process of ``source`` is dead afterwards, and its snapshots are dropped.  ``fresh`` is a spec, or a pool: one
    of its own, because users of one pool who hold a sandbox each and wait for a second would wait for each other.
    Raises ``TreeRefused`` for files that are not copied (missing, a link, too many: the policy's failure), and what
    opening a sandbox raises.
    """
    tree = await source.read_tree(paths, limits, alone=True)
    async with opened(fresh) if isinstance(fresh, SandboxSpec) else fresh.acquire() as sandbox:
        await sandbox.write_tree(tree)
        yield sandbox
