"""What the kernel counted, less what arrived: by destination, by label, and to the last."""

from collections import Counter

from sandboxes.egress.interception import rules
from sandboxes.egress.interception.rules import KINDS, Destination, counter_name
from sandboxes.egress.interception.tally import Counted, Tally

ONE = Destination("connections", "tcp", bytes(4), 80)
OTHER = Destination("packets", "udp", bytes(16), 9, excess=True)


def totals(**found: int) -> dict[str, int]:
    names = {counter_name(kind, excess): 0 for kind in KINDS for excess in (False, True)}
    return names | {name.replace("_", "-"): count for name, count in found.items()}


def test_excess_is_reported_once_and_by_destination():
    tally, kernel = Tally(), totals(packets_excess=5)
    assert tally.excess(kernel, {OTHER: 5}, "turn 1", is_last=False) == [Counted("packets", OTHER, 5, "turn 1", True)]
    assert not tally.has_excess(kernel)
    assert tally.excess(totals(packets_excess=7), {OTHER: 7}, "turn 2", is_last=False)[0].count == 2


def test_what_no_set_has_is_reported_without_a_destination_when_nothing_can_be_missing_by_chance():
    tally, kernel = Tally(), totals(packets_excess=8)
    assert tally.excess(kernel, {OTHER: 5}, None, is_last=False)[-1].destination == OTHER
    assert tally.excess(kernel, {OTHER: 5}, None, is_last=True) == [Counted("packets", None, 3, None, True)]
    assert tally.excess(kernel, {OTHER: 5}, None, is_last=True) == []


def test_what_never_arrives_belongs_to_the_label_under_which_it_was_tried_last():
    """First come, first served: what arrives under a later label is the oldest that was open."""
    tally = Tally()
    tally.passing({ONE: 3}, "turn 1")
    tally.arrive(ONE)
    tally.arrive(ONE)
    tally.passing({ONE: 4}, "turn 2")
    tally.passing({ONE: 6}, "turn 3")
    lost = tally.lost(totals(connections=6), "turn 3")
    assert Counter({counted.label: counted.count for counted in lost}) == {"turn 1": 2, "turn 3": 2}
    assert sum(counted.count for counted in lost) + 2 == 6
    assert not tally.renewed().has_passing(totals(connections=6))


def test_what_is_settled_can_be_forgotten_and_the_sums_go_on():
    tally, kernel = Tally(), totals(connections=1, packets_excess=5)
    tally.arrive(ONE)
    tally.excess(kernel, {ONE: 1, OTHER: 5}, None, is_last=False)
    assert set(tally.settled({ONE: 1, OTHER: 5})) == {ONE, OTHER}
    tally.forget([ONE, OTHER])
    assert not tally.has_excess(kernel)
    assert not tally.has_passing(kernel)


def test_a_key_of_the_kernel_is_read_for_its_destination():
    key = b"\0\0\0\x12" + b"\x11\0\0\0" + bytes(15) + b"\1" + b"\0\x35\0\0"
    assert rules.destination(key) == Destination("packets", "udp", bytes(15) + b"\1", 53, excess=True)
