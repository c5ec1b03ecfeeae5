"""What whoever runs the service lets its runs name, beside what the catalog holds.

The web process refuses the rest when it is named, and the job's own process once more.  On the command line the user
is the operator, and nothing of this is asked.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from engine.spec.problems import Problem
from engine.spec.resources import Resources
from engine.spec.run import RunSpec
from engine.spec.strict import Strict


class Allowed(Strict):
    openenv: list[str] = []
    """Addresses of OpenEnv servers (``PALESTRA_OPENENV``)."""
    exchange: str | None = None
    """The folder below which weights are handed to servers given by URL (``PALESTRA_EXCHANGE``)."""

    def refusals(self, spec: RunSpec) -> Iterator[Problem]:
        """What the spec names of a server or a folder that is not allowed; not OpenEnv's, which is an environment."""
        yield from self._of_exchange(spec.resources)

    def _of_exchange(self, resources: Resources) -> Iterator[Problem]:
        folder = resources.sglang.exchange_folder
        if folder is None or (self.exchange is not None and _is_below(folder, self.exchange)):
            return
        where = "let PALESTRA_EXCHANGE name one" if self.exchange is None else f"name one below {self.exchange}"
        yield Problem(
            "resources.sglang.exchange_folder",
            folder,
            "the service writes weights into no folder of the server's that whoever runs it has not named",
            f'{where}, or use weights = "tensor"',
        )


def _is_below(folder: str, root: str) -> bool:
    path = PurePosixPath(folder)
    return ".." not in path.parts and path != PurePosixPath(root) and path.is_relative_to(root)
