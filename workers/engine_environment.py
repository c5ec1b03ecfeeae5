"""What of the service's environment a process of the engine gets: what is named here, and nothing else.

Such processes read hostile files, serve hostile models and run beside hostile code, so a variable that nobody has named
here (a secret that is new in ``.env.production``) reaches none of them.

``python -m workers.engine_environment MODULE ARGUMENT...`` becomes ``python -m MODULE ARGUMENT...`` with what jobs get.
"""

import os
import sys
from collections.abc import Mapping, Sequence

ENGINE = (
    "PATH", "HOME", "LANG", "LC_", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED",
    "PALESTRA_HOME", "PALESTRA_RUNS", "PALESTRA_MODELS", "PALESTRA_DATASETS",
    "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
)  # fmt: skip
"""Every one, by its name or by how it begins: no secret is among them."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
PLAYERS = (
    *ENGINE, *PROXIES, "DOCKER_HOST", "PALESTRA_SANDBOX_URL", "PALESTRA_SANDBOX_TOKEN", "PALESTRA_JUDGE_", "PIP_",
)  # fmt: skip
"""Whoever plays an environment, which opens sandboxes, asks the judge of a rubric and installs packages."""
CLUSTER = ("RAY_", "AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")
"""Ray's nodes and jobs: their addresses, switches and token."""
JOBS = (
    *PLAYERS, *CLUSTER, "NCCL_", "GLOO_", "SGLANG_",
    "PALESTRA_TRAJECTORIES", "PALESTRA_SGLANG_PYTHON", "PALESTRA_SGLANG_KEYS",
)  # fmt: skip
"""Runs, tries and checks, on Ray."""


def passed_on(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of these names, and those that begin with one that ends in ``_``."""
    whole = frozenset(names)
    begins = tuple(name for name in names if name.endswith("_"))
    return {name: value for name, value in environ.items() if name in whole or name.startswith(begins)}


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, "-m", *sys.argv[1:]], passed_on(JOBS))
