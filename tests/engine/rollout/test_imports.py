import subprocess
import sys


def test_a_rollout_worker_stays_free_of_torch_ray_and_django():
    code = "import engine.rollout.worker, engine.rollout.demonstrations, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "engine.rollout.worker" in loaded
    assert not {"torch", "ray", "django"} & set(loaded)
