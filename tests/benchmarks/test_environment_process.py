"""The benchmark of environment processes measures both arms of the same package."""

import pytest

from benchmarks import environment_process


def test_both_arms_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path))
    monkeypatch.setattr(environment_process, "CALLS", 5)
    monkeypatch.setattr(environment_process, "ROUNDS", 1)
    cost = environment_process.measured()
    assert cost.call_ms > cost.own_call_ms > 0
    assert cost.start_s > 0
    assert cost.calls_per_s_of_64 > 0
