"""What a policy may say, and how it is refused."""

import pytest
from pydantic import ValidationError

from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.rule import Rule


def rule(name="web", action="allow", **more):
    return {"name": name, "action": action, **({"ports": [443]} if action == "allow" else {}), **more}


def complaint(*rules):
    with pytest.raises(ValidationError) as caught:
        EgressPolicy(rules=rules)
    return caught.value.errors()[0]


ONE_RULE_REFUSED = [
    ({"hosts": ["*"]}, "hosts", "*", "*.example.org"),
    ({"hosts": ["*.org"]}, "hosts", "*.org", "one owner"),
    ({"hosts": ["*.co.uk"]}, "hosts", "*.co.uk", "one owner"),
    ({"hosts": ["*.github.io"]}, "hosts", "*.github.io", "one owner"),
    ({"hosts": ["a.*.org"]}, "hosts", "a.*.org", "*.example.org"),
    ({"hosts": ["exa*.org"]}, "hosts", "exa*.org", "*.example.org"),
    ({"hosts": ["https://example.org/"]}, "hosts", "https://example.org/", "without scheme"),
    ({"hosts": ["example.org:443"]}, "hosts", "example.org:443", "without scheme"),
    ({"hosts": ["b\u00fccher.example"]}, "hosts", "b\u00fccher.example", "xn--"),
    ({"hosts": ["203.0.113.7"]}, "hosts", "203.0.113.7", "cidrs"),
    ({"hosts": ["0x7f000001"]}, "hosts", "0x7f000001", "cidrs"),
    ({"hosts": ["2130706433"]}, "hosts", "2130706433", "cidrs"),
    ({"hosts": ["localhost"]}, "hosts", "localhost", "own loopback"),
    ({"hosts": [f"{'a' * 64}.example.org"]}, "hosts", f"{'a' * 64}.example.org", "such as"),
    ({"hosts": [""]}, "hosts", "", "such as"),
    ({"cidrs": ["10.0.0.1/8"]}, "cidrs", "10.0.0.1/8", "10.0.0.0/8"),
    ({"cidrs": ["2001:db8::1/32"]}, "cidrs", "2001:db8::1/32", "2001:db8::/32"),
    ({"cidrs": ["203.0.113.7"]}, "cidrs", "203.0.113.7", "203.0.113.7/32"),
    ({"cidrs": ["203.0.113.0/33"]}, "cidrs", "203.0.113.0/33", "address/prefix"),
    ({"cidrs": ["::ffff:10.0.0.0/104"]}, "cidrs", "::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ({"hosts": ["example.org"], "ports": [0]}, "ports", 0, "1 to 65535"),
    ({"hosts": ["example.org"], "ports": [65536]}, "ports", 65536, "1 to 65535"),
    ({"hosts": ["example.org"], "ports": ["80-70000"]}, "ports", "80-70000", "1 to 65535"),
    ({"hosts": ["example.org"], "ports": ["90-80"]}, "ports", "90-80", "80-90"),
    ({"hosts": ["example.org"], "ports": ["https"]}, "ports", "https", "8000-8100"),
    ({"hosts": ["example.org"], "ports": []}, "ports", (), "1-65535"),
    ({"hosts": ["example.org"], "ports": [-1]}, "ports", -1, "1 to 65535"),
    ({"hosts": ["example.org"], "ports": [True]}, "ports", True, "8000-8100"),
    ({"hosts": ["example.org"], "ports": [80.0]}, "ports", 80.0, "8000-8100"),
    ({"hosts": ["example.org"], "ports": ["\u0664\u0664\u0663"]}, "ports", "\u0664\u0664\u0663", "8000-8100"),
    ({"hosts": ["example.org"], "methods": ["*"]}, "methods", "*", "leave methods out"),
    ({"hosts": ["example.org"], "methods": ["GET "]}, "methods", "GET ", "such as GET"),
    ({"hosts": ["example.org"], "protocols": ["udp"]}, "protocols", "udp", "use tcp"),
    ({}, "hosts", (), "give hosts or cidrs"),
]


@pytest.mark.parametrize(("given", "field", "value", "remedy"), ONE_RULE_REFUSED)
def test_a_bad_rule_is_refused_with_field_value_and_remedy(given, field, value, remedy):
    error = complaint(rule(**given))
    assert error["loc"] == ("rules", 0)
    assert (error["ctx"]["field"], error["ctx"]["value"]) == (field, value)
    assert remedy in error["ctx"]["remedy"]
    assert error["msg"]


DENY = {"action": "deny"}
TOGETHER_REFUSED = [
    ("same name", rule(hosts=["a.org"]), rule(hosts=["b.org"]), "rules.1.name"),
    ("same host", rule("a", hosts=["a.org"]), rule("b", **DENY, hosts=["a.org"], ports=[443]), "rules.1.hosts"),
    ("broad deny first", rule("a", **DENY, hosts=["*.a.org"], ports=[22]),
     rule("b", hosts=["x.a.org"], ports=["1-100"]), "rules.1.hosts"),
    ("ports cross", rule("a", hosts=["a.org"], ports=["1-500"]),
     rule("b", **DENY, hosts=["a.org"], ports=["400-900"]), "rules.1.hosts"),
    ("broad network first", rule("a", cidrs=["203.0.113.0/24"]),
     rule("b", **DENY, cidrs=["203.0.113.7/32"]), "rules.1.cidrs"),
    ("hidden by a wildcard", rule("a", hosts=["*.a.org"]), rule("b", hosts=["x.a.org"]), "rules.1.name"),
    ("hidden by a network", rule("a", cidrs=["203.0.113.0/24"]), rule("b", cidrs=["203.0.113.8/29"]), "rules.1.name"),
    ("hidden though narrower", rule("a", hosts=["a.org"]),
     rule("b", hosts=["a.org"], cidrs=["203.0.113.0/24"]), "rules.1.name"),
    ("of all of IPv6", rule("a", cidrs=["2001:db8::/32"]), rule("b", **DENY, cidrs=["2001:db8:1::/48"]),
     "rules.1.cidrs"),
]  # fmt: skip


@pytest.mark.parametrize(("_", "one", "other", "field"), TOGETHER_REFUSED, ids=[case[0] for case in TOGETHER_REFUSED])
def test_rules_that_can_be_misread_together_are_refused(_, one, other, field):
    error = complaint(one, other)
    assert error["ctx"]["field"] == field
    assert error["ctx"]["remedy"]


def test_more_destinations_than_can_be_compared_are_refused():
    names = [f"h{number}.example.org" for number in range(100)]
    networks = [f"203.0.113.{number}/32" for number in range(5)]
    rules = [rule(f"r{place}", hosts=names, cidrs=networks, ports=[place + 1]) for place in range(2)]
    assert len(EgressPolicy(rules=rules).rules) == 2
    error = complaint(*rules, rule("one more", hosts=["a.org"]))
    assert (error["ctx"]["field"], error["ctx"]["value"]) == ("rules", 1001)
    assert "1000 at most" in error["ctx"]["remedy"]


ACCEPTED = [
    ("a narrower host before a broader one", rule("a", **DENY, hosts=["x.a.org"]), rule("b", hosts=["*.a.org"])),
    ("fewer ports of the same host", rule("a", **DENY, hosts=["a.org"], ports=[22]),
     rule("b", hosts=["a.org"], ports=["1-1000"])),
    ("a narrower network", rule("a", **DENY, cidrs=["203.0.113.7/32"]), rule("b", cidrs=["203.0.113.0/24"])),
    ("other ports", rule("a", **DENY, cidrs=["203.0.113.0/24"], ports=[25]), rule("b", cidrs=["203.0.113.0/24"])),
    ("other methods", rule("a", hosts=["a.org"], methods=["GET"]), rule("b", **DENY, hosts=["a.org"],
                                                                        methods=["POST"])),
    ("all of IPv6 is nothing of IPv4", rule("a", cidrs=["::/0"]), rule("b", **DENY, cidrs=["203.0.113.0/24"])),
    ("names and networks are not compared", rule("a", **DENY, cidrs=["0.0.0.0/0"], ports=[25]),
     rule("b", hosts=["a.org"], ports=[25])),
]  # fmt: skip


@pytest.mark.parametrize(("_", "one", "other"), ACCEPTED, ids=[case[0] for case in ACCEPTED])
def test_plain_exceptions_are_accepted(_, one, other):
    assert len(EgressPolicy(rules=[one, other]).rules) == 2


def test_a_policy_survives_json():
    given = EgressPolicy(rules=[rule(hosts=["API.Example.ORG."], ports=[80, "8000-8100"], methods=["get"])])
    assert EgressPolicy.model_validate_json(given.model_dump_json()) == given
    assert given.rules[0].hosts == ("api.example.org",)
    assert given.rules[0].methods == ("GET",)


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="extra"):
        Rule(name="a", action="deny", hosts=["a.org"], host="b.org")


def test_a_wildcard_means_names_below_and_not_the_domain_itself():
    wild = Rule(**rule(hosts=["*.example.org"]))
    assert [wild.names_host(name) for name in ("a.example.org", "a.b.example.org")] == [True, True]
    others = ("example.org", ".example.org", "aexample.org", "a.example.org.evil.net")
    assert not any(wild.names_host(name) for name in others)
