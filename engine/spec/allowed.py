"""What whoever runs the service lets its runs name, beside what the catalog holds.

The web process refuses the rest when it is named, and the job's own process once more.  On the command line the user
is the operator, and nothing of this is asked.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from engine.spec.judge import OF_THE_RUN
from engine.spec.judge_requirements import endpoints_in
from engine.spec.problems import Problem
from engine.spec.resources import Resources
from engine.spec.run import RunSpec
from engine.spec.strict import Strict

ON_ONES_OWN = "train it with: python -m engine train"


class Allowed(Strict):
    openenv: list[str] = []
    """Addresses of OpenEnv servers (``PALESTRA_OPENENV``)."""
    judges: list[str] = []
    """Addresses of language models that judge (``PALESTRA_JUDGES``)."""
    sglang: list[str] = []
    """SGLang servers that already run (``PALESTRA_SGLANG_URLS``)."""
    exchange: str | None = None
    """The folder below which weights are handed to servers given by URL (``PALESTRA_EXCHANGE``)."""

    def refusals(self, spec: RunSpec) -> Iterator[Problem]:
        """What the spec names of a server or a folder that is not allowed; not OpenEnv's, which is an environment."""
        for name in RunSpec.model_fields:
            yield from self.refusals_of_judges(getattr(spec, name), name)
        for url in spec.resources.sglang.urls:
            if url not in self.sglang:
                message = "the service asks no SGLang server that whoever runs it has not allowed"
                remedy = f"let it be added to PALESTRA_SGLANG_URLS, remove it, or {ON_ONES_OWN}"
                yield Problem("resources.sglang.urls", url, message, remedy)
        yield from self._of_exchange(spec.resources)

    def refusals_of_judges(self, part: Any, path: str) -> Iterator[Problem]:
        """Judges at addresses, in what stands at ``path`` of a spec."""
        for field, asked in endpoints_in(part, path):
            if not asked.is_of_the_run and asked.endpoint.rstrip("/") not in self.judges:
                message = "the service asks no judge that whoever runs it has not allowed"
                remedy = f"let it be added to PALESTRA_JUDGES, let the run serve it ({OF_THE_RUN}), or {ON_ONES_OWN}"
                yield Problem(f"{field}.endpoint", asked.endpoint, message, remedy)

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
