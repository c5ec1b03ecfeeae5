"""What is allowed: default deny, pinned names, special ranges, quotas."""

import ipaddress

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandboxes.egress.address import normalised
from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import REASONS, WHY, Usage, decide, failed_closed, may_resolve, quota_reason, sentence
from sandboxes.egress.policy import EgressPolicy, Quotas
from sandboxes.egress.rule import Rule

HERE = "203.0.113.7"


def attempt(address=HERE, port=443, protocol="tcp", stage="opening", **more):
    return ConnectionAttempt(
        sandbox="b", sequence=1, at=1.0, protocol=protocol, address=address, port=port, stage=stage, **more
    )


def query(name, kind="A"):
    return ConnectionAttempt(sandbox="b", sequence=1, at=1.0, protocol="dns", name=name, query_type=kind)


def allow(name="web", **more):
    return Rule(name=name, action="allow", **{"ports": [443], **more})


def deny(name="no", **more):
    return Rule(name=name, action="deny", **more)


def policy(*rules, **quotas):
    return EgressPolicy(rules=rules, quotas=Quotas(**quotas))


WEB = policy(allow(hosts=["api.example.org", "*.cdn.example.org"]))
PINNED = {HERE: ("api.example.org",)}

EACH_REASON = [
    ("allowed-by-rule", WEB, attempt(sni="api.example.org"), PINNED, Usage()),
    ("denied-by-rule", policy(deny(cidrs=["203.0.113.0/24"])), attempt(), {}, Usage()),
    ("no-rule", policy(), attempt(), {}, Usage()),
    ("special-range", WEB, attempt("10.0.0.1"), {"10.0.0.1": ("api.example.org",)}, Usage()),
    ("not-resolved", WEB, attempt(sni="api.example.org"), {}, Usage()),
    ("name-mismatch", WEB, attempt(sni="evil.example.net"), PINNED, Usage()),
    ("method-not-allowed", policy(allow(hosts=["api.example.org"], methods=["GET"])), attempt(method="POST"), PINNED,
     Usage()),
    ("protocol-not-forwarded", WEB, attempt(protocol="udp"), PINNED, Usage()),
    ("dns-type-not-allowed", WEB, query("api.example.org", "TXT"), {}, Usage()),
    ("malformed", WEB, attempt(address=None), {}, Usage()),
    ("quota-bytes-up", WEB, attempt(), PINNED, Usage(sandbox_up_bytes=10**12)),
    ("quota-bytes-down", WEB, attempt(), PINNED, Usage(connection_down_bytes=10**12)),
    ("quota-connections", WEB, attempt(), PINNED, Usage(connections=64)),
    ("quota-rate", WEB, attempt(), PINNED, Usage(attempts_last_minute=600)),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "rules", "tried", "resolved", "usage"), EACH_REASON, ids=lambda v: str(v)[:20])
def test_each_reason_is_given_for_what_it_says(reason, rules, tried, resolved, usage):
    decision = decide(rules, tried, resolved, usage)
    assert decision.reason == reason
    assert decision.allowed == (reason == "allowed-by-rule")
    assert sentence(decision, tried).endswith(WHY[reason])


def test_no_reason_is_unreachable():
    of_the_gateway = {"unreadable", "upgrade-not-allowed"}  # tests/sandboxes/test_http_streams.py
    decided = {case[0] for case in EACH_REASON} | {failed_closed(WEB).reason}
    assert decided | of_the_gateway == set(REASONS) == set(WHY)
    assert not decided & of_the_gateway


def test_the_agent_reads_policy_destination_and_reason():
    tried = attempt(port=4444)
    line = sentence(decide(policy(), tried, {}), tried)
    assert line == "policy 'default-deny' denied tcp 203.0.113.7:4444: no rule allows it"
    tried = attempt("2001:db8::1", 80)
    assert "tcp [2001:db8::1]:80" in sentence(decide(policy(), tried, {}), tried)


@pytest.mark.parametrize("claim", [{"sni": "api.example.org"}, {"host": "api.example.org:443"}, {"host": HERE}, {}])
def test_a_connection_to_a_pinned_address_is_allowed_if_what_it_says_agrees(claim):
    assert decide(WEB, attempt(**claim), PINNED).allowed


@pytest.mark.parametrize(
    "claim",
    [
        {"sni": "x.cdn.example.org"},
        {"sni": "api.example.org", "host": "x.cdn.example.org"},
        {"host": "evil.example.net"},
        {"host": "203.0.113.8"},
        {"sni": "api.example.org" + "a" * 5000},
    ],
)
def test_a_name_that_is_not_the_pinned_one_is_a_mismatch(claim):
    assert decide(WEB, attempt(**claim), PINNED).reason == "name-mismatch"


def test_fronting_among_two_names_of_one_address_is_refused():
    both = {HERE: ("api.example.org", "x.cdn.example.org")}
    assert decide(WEB, attempt(sni="x.cdn.example.org"), both).allowed
    fronted = attempt(sni="api.example.org", host="x.cdn.example.org")
    assert decide(WEB, fronted, both).reason == "name-mismatch"


def test_a_false_name_does_not_slip_past_a_deny_rule():
    rules = policy(deny(hosts=["bad.example.org"]), allow(cidrs=["203.0.113.0/24"]))
    bad = {HERE: ("bad.example.org",)}
    for claim in ({}, {"sni": "bad.example.org"}, {"sni": "zzz"}, {"sni": "bad.example.org", "host": "zzz"}):
        assert decide(rules, attempt(**claim), bad).reason == "denied-by-rule"
    assert decide(rules, attempt(sni="bad.example.org"), {}).reason == "denied-by-rule"
    assert decide(rules, attempt(sni="good.example.org"), {}).allowed


def test_with_hosts_and_networks_the_name_must_lie_in_the_network():
    rules = policy(allow(hosts=["registry.corp.example"], cidrs=["10.1.0.0/16"]))
    names = ("registry.corp.example",)
    assert decide(rules, attempt("10.1.2.3"), {"10.1.2.3": names}).allowed
    assert not decide(rules, attempt("10.2.2.3"), {"10.2.2.3": names}).allowed
    assert not decide(rules, attempt("10.1.2.3"), {}).allowed


SPECIAL = [
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
    "0.0.0.0", "240.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16", "::1", "fe80::1", "fd00:ec2::254",
    "fc00::1", "ff02::1", "::ffff:10.1.2.3", "::10.1.2.3", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001::1", "::",
]  # fmt: skip


@pytest.mark.parametrize("address", SPECIAL)
def test_a_special_address_is_opened_by_no_name_and_no_wide_network(address):
    wide = policy(allow("a", hosts=["api.example.org"]), allow("b", cidrs=["0.0.0.0/0", "::/0"]))
    decision = decide(wide, attempt(address), {normalised(address): ("api.example.org",)})
    assert decision.reason == "special-range"


@pytest.mark.parametrize("address", SPECIAL)
def test_a_special_address_is_opened_by_a_rule_that_names_it(address):
    exact = normalised(address)
    rules = policy(allow(cidrs=[f"{exact}/{ipaddress.ip_address(exact).max_prefixlen}"]))
    assert decide(rules, attempt(address), {}).allowed


def test_the_metadata_service_is_not_just_some_link_local_address():
    rules = policy(allow(cidrs=["169.254.0.0/16"]))
    assert decide(rules, attempt("169.254.1.1"), {}).allowed
    assert decide(rules, attempt("169.254.169.254"), {}).reason == "special-range"


def test_methods_are_enforced_once_the_first_bytes_are_known_and_unreadable_ones_fail_closed():
    reading = policy(allow(hosts=["api.example.org"], methods=["GET"]))
    assert decide(reading, attempt(stage="connect"), PINNED).allowed
    assert decide(reading, attempt(method="get"), PINNED).allowed
    assert decide(reading, attempt(sni="api.example.org"), PINNED).reason == "method-not-allowed"
    no_posts = policy(deny(hosts=["api.example.org"], methods=["POST"]), allow(hosts=["api.example.org"]))
    assert decide(no_posts, attempt(stage="connect"), PINNED).allowed
    assert decide(no_posts, attempt(method="GET"), PINNED).allowed
    assert decide(no_posts, attempt(sni="api.example.org"), PINNED).reason == "denied-by-rule"


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("api.example.org", True), ("API.example.org.", False), ("x.cdn.example.org", True), ("cdn.example.org", False),
        ("bad.cdn.example.org", False), ("example.org", False), ("api.example.org.evil.net", False), ("", False),
        ("x y.cdn.example.org", False), ("\\x00.cdn.example.org", False), ("no-ssh.cdn.example.org", True),
    ],
)  # fmt: skip
def test_exactly_the_names_of_allow_rules_are_resolved(name, answered):
    """As normalised names; ``ConnectionAttempt`` normalises."""
    rules = policy(
        deny("bad", hosts=["bad.cdn.example.org"]),
        deny("some", hosts=["no-ssh.cdn.example.org"], ports=[22]),
        allow(hosts=["api.example.org", "*.cdn.example.org"], ports=[22, 443]),
    )
    assert may_resolve(rules, name) is answered
    assert decide(rules, query("API.Example.ORG."), {}).allowed


def test_quotas_bind_at_the_bound_and_not_before():
    quotas = Quotas(connection_up_bytes=10, connections=2, attempts_per_minute=3)
    assert quota_reason(quotas, Usage(connection_up_bytes=9)) is None
    assert quota_reason(quotas, Usage(connection_up_bytes=10)) == "quota-bytes-up"
    assert quota_reason(quotas, Usage(connections=1), attempt()) is None
    assert quota_reason(quotas, Usage(connections=2), attempt()) == "quota-connections"
    assert quota_reason(quotas, Usage(connections=2), query("a.org")) is None
    assert quota_reason(quotas, Usage(attempts_last_minute=3), query("a.org")) == "quota-rate"


# ---- properties ----

HOSTS = st.sampled_from(["a.example.org", "b.example.org", "*.example.org", "x.net", "*.x.net", "y.x.net"])
NETS = st.sampled_from(["203.0.113.0/24", "203.0.113.7/32", "0.0.0.0/0", "10.0.0.0/8", "169.254.169.254/32", "::/0"])
NAMES = st.sampled_from(["a.example.org", "b.example.org", "y.x.net", "x.net", "evil.example"])
PORTS = st.sampled_from([22, 80, 443, "1-1000", "400-9000"])
ADDRESSES = st.sampled_from([HERE, "203.0.113.8", "198.51.100.1", "10.0.0.1", "169.254.169.254", "2001:db8::1", "::1"])


@st.composite
def rules(draw, action):
    hosts = draw(st.lists(HOSTS, max_size=2, unique=True))
    cidrs = draw(st.lists(NETS, max_size=2, unique=True)) if hosts else [draw(NETS)]
    methods = draw(st.sampled_from([[], [], ["GET"], ["POST"]]))
    ports = draw(st.lists(PORTS, min_size=1, max_size=2, unique=True))
    return Rule(name=f"r{draw(st.integers(0, 10**9))}", action=action, hosts=hosts, cidrs=cidrs, ports=ports,
                methods=methods)  # fmt: skip


@st.composite
def policies(draw):
    chosen = draw(st.lists(st.sampled_from(["allow", "deny"]).flatmap(rules), max_size=4))
    try:
        return EgressPolicy(rules=chosen)
    except ValidationError:
        return EgressPolicy(rules=chosen[:1])


@st.composite
def attempts(draw):
    if draw(st.booleans()):
        return query(draw(NAMES), draw(st.sampled_from(["A", "AAAA", "TXT"])))
    return attempt(
        draw(ADDRESSES),
        draw(st.sampled_from([22, 80, 443, 5000])),
        draw(st.sampled_from(["tcp", "tcp", "tcp", "udp", "icmp"])),
        draw(st.sampled_from(["connect", "opening"])),
        sni=draw(st.none() | NAMES),
        host=draw(st.none() | NAMES),
        method=draw(st.sampled_from([None, "GET", "POST"])),
    )


TABLES = st.dictionaries(ADDRESSES, st.lists(NAMES, max_size=2), max_size=4)


@settings(max_examples=300, deadline=None)
@given(policies(), attempts(), TABLES)
def test_decide_is_deterministic_and_pure(rules, tried, resolved):
    before = {address: list(names) for address, names in resolved.items()}
    assert decide(rules, tried, resolved) == decide(rules.model_copy(deep=True), tried.model_copy(), resolved)
    assert resolved == before


@settings(max_examples=300, deadline=None)
@given(attempts(), TABLES)
def test_without_an_allow_rule_nothing_is_allowed(tried, resolved):
    assert not decide(EgressPolicy(), tried, resolved).allowed
    assert not decide(policy(deny(hosts=["*.example.org"], cidrs=[])), tried, resolved).allowed


@settings(max_examples=600, deadline=None)
@given(policies(), rules("deny"), st.integers(0, 4), attempts(), TABLES)
def test_adding_a_deny_rule_never_allows_more(before, denying, place, tried, resolved):
    chosen = list(before.rules)
    chosen.insert(place, denying)
    try:
        after = EgressPolicy(rules=chosen)
    except ValidationError:
        assume(False)
    assert decide(before, tried, resolved).allowed or not decide(after, tried, resolved).allowed


@settings(max_examples=300, deadline=None)
@given(policies(), attempts(), TABLES)
def test_what_is_allowed_is_allowed_by_a_named_allow_rule_over_a_forwarded_protocol(rules, tried, resolved):
    decision = decide(rules, tried, resolved)
    if decision.allowed:
        assert [rule.action for rule in rules.rules if rule.name == decision.rule] == ["allow"]
        assert tried.protocol in {"tcp", "dns"}
        assert decision.reason == "allowed-by-rule"


@settings(max_examples=300, deadline=None)
@given(policies(), attempts(), TABLES)
def test_a_host_rule_alone_never_lets_an_address_through_that_was_not_resolved(rules, tried, resolved):
    decision = decide(rules, tried, {})
    if decision.allowed and tried.protocol != "dns":
        assert next(rule for rule in rules.rules if rule.name == decision.rule).hosts == ()


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_its_ipv4_address(address):
    mapped = f"::ffff:{address}"
    assert normalised(mapped) == normalised(str(address)) == str(address)
    assert decide(WEB, attempt(mapped), {str(address): ("api.example.org",)}) == decide(
        WEB, attempt(str(address)), {str(address): ("api.example.org",)}
    )


@given(st.ip_addresses())
def test_normalising_twice_changes_nothing(address):
    assert normalised(normalised(address.exploded)) == normalised(str(address))


@given(st.text(max_size=2000) | st.binary(max_size=2000))
def test_no_name_that_a_sandbox_can_send_breaks_or_bloats_an_attempt(text):
    tried = attempt(sni=text, host=text, name=text, method=text)
    assert max(len(tried.sni), len(tried.host), len(tried.name)) <= 255
    assert tried.sni.isprintable()
    assert tried.sni.isascii()
    assert not decide(policy(), tried, {}).allowed
