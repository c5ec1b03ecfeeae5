import pytest

from engine.algorithms.curriculum import attribution_weight, self_imitation_weight, tool_call_weight


@pytest.mark.parametrize(("step", "weight"), [(0, 1.0), (50, 0.853553), (100, 0.5), (200, 0.0), (999, 0.0)])
def test_the_tool_call_reward_decays_by_hand(step, weight):
    assert tool_call_weight(step, 200) == pytest.approx(weight, abs=1e-6)


@pytest.mark.parametrize(("step", "weight"), [(0, 0.0), (50, 0.146447), (100, 0.5), (200, 1.0), (999, 1.0)])
def test_self_imitation_warms_up_by_hand(step, weight):
    assert self_imitation_weight(step, 200) == pytest.approx(weight, abs=1e-6)


def test_over_equal_steps_one_gives_way_to_the_other():
    for step in range(250):
        assert tool_call_weight(step, 200) + self_imitation_weight(step, 200) == pytest.approx(1)
        assert tool_call_weight(step + 1, 200) <= tool_call_weight(step, 200)


def test_schedules_of_no_steps_are_over_at_once():
    assert (tool_call_weight(0, 0), self_imitation_weight(0, 0)) == (0, 1)


def test_attribution_is_constant_unless_it_decays():
    assert attribution_weight(999, None, alpha=0.2) == 0.2
    assert [attribution_weight(step, 10, alpha=0.2) for step in (0, 5, 10)] == pytest.approx([0.2, 0.1, 0])
