import subprocess
import sys


def test_a_rollout_worker_stays_free_of_torch_ray_and_django():
    code = "import sys, engine.rollout.worker, engine.rollout.demonstrations; print(*{'torch', 'ray', 'django'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
