import pytest

from engine.inference.torch.factory import builtin_generator
from tests.engine.inference.torch.cast import SPEC, weights


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
async def generator(request):
    made = builtin_generator(SPEC, slots=64, threads=request.param, seed=0)
    await made.load_weights(weights(), version=1)
    yield made
    made.close()
