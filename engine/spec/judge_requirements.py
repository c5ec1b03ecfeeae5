"""What judges that the run serves itself require of the rest of a run."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from engine.spec.impossible import impossible
from engine.spec.judge import OF_THE_RUN, ChatEndpoint
from engine.spec.server_url import server_at


def refusals_of_judge(run: Any) -> Iterator[PydanticCustomError]:
    """``run`` is a RunSpec; who asks servers that are not started or are the policy's, and servers that nobody asks."""
    parts = (("recipe", run.recipe), ("environment", run.environment))
    asking = [(path, endpoint) for name, part in parts for path, endpoint in endpoints_in(part, name)]
    of_the_run = [(path, endpoint) for path, endpoint in asking if endpoint.is_of_the_run]
    for path, endpoint in of_the_run:
        if run.resources.judge is None:
            problem = "the run starts no such servers"
            remedy = "add resources.judge with a path or a version of the catalog, or give an address"
            yield impossible(f"{path}.endpoint", OF_THE_RUN, problem, remedy)
        if endpoint.api_key_variable is not None:
            problem = "servers of the run have keys that the engine makes"
            yield impossible(f"{path}.api_key_variable", endpoint.api_key_variable, problem, "remove it")
    exchanged = {server_at(url) for url in run.resources.sglang.urls}
    for path, endpoint in asking:
        if not endpoint.is_of_the_run and server_at(endpoint.endpoint) in exchanged:
            problem = "this server is one of resources.sglang.urls: its weights are the policy's, and change"
            remedy = "let resources.judge serve another model, or give another server's address"
            yield impossible(f"{path}.endpoint", endpoint.endpoint, problem, remedy)
    if run.resources.judge is not None and not of_the_run:
        problem = "nobody would ask these servers"
        yield impossible(
            OF_THE_RUN, "set", problem, f'name it as the endpoint of a judge ("{OF_THE_RUN}"), or remove it'
        )


def endpoints_in(part: Any, path: str) -> Iterator[tuple[str, ChatEndpoint]]:
    """Every language model that is asked by ``part``, with the path of its field."""
    if isinstance(part, ChatEndpoint):
        yield path, part
    elif isinstance(part, BaseModel):
        for name in type(part).model_fields:
            yield from endpoints_in(getattr(part, name), f"{path}.{name}")
    elif isinstance(part, list | tuple):
        for number, member in enumerate(part):
            yield from endpoints_in(member, f"{path}.{number}")
    elif isinstance(part, dict):
        for name, member in part.items():
            yield from endpoints_in(member, f"{path}.{name}")
