import json
from contextlib import suppress
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.refusal import ModelFolderRefused
from engine.rollout.renderers import preflight, template
from engine.rollout.renderers.preflight import chat_problem, problem_here
from engine.rollout.renderers.template import ChatTemplate, TemplateRefused
from tests.engine.rollout.renderers.model_folders import write_folder

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_folder(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="module")
def tokenizer(folder) -> PretrainedTokenizer:
    return PretrainedTokenizer(folder)


def written(source: str, tokenizer: PretrainedTokenizer, messages=HELLO, **variables) -> str:
    return ChatTemplate(source, tokenizer).written(messages, None, generation=False, variables=variables)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no') }}", "refuses: no"),
        ("{{ messages[7].content.x }}", "UndefinedError"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "loops"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% set c = b %}{% endfor %}{% endfor %}", "loops"),
        ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "RecursionError"),
        ("{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}", "loops"),
        ("{% for a in range(99999999) %}{% endfor %}", "OverflowError"),
        ("{{ 'a' * 10000000000 }}", "writes more than"),
        ("{{ 10000000000 * messages }}", "writes more than"),
        ("{{ 9 ** 9999999 }}", "power"),
        ("{% set n = namespace(x='aa') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}", "more than"),
        ("{% set n = namespace(x='aa') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "more than"),
        (
            "{% set n = namespace(x='aa') %}"
            "{% for a in range(99) %}{% for x in [n.x + n.x] %}{% set n.x = x %}{% endfor %}{% endfor %}",
            "more than",
        ),
        ("{% set x %}aa{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 27, "more than"),
        ("{% set x %}aa{% endset %}" + "{% set x | upper %}{{ x }}{{ x }}{% endset %}" * 27, "more than"),
        ("{% set x = 'aa' %}" + "{% with x = x + x %}" * 27 + "{% endwith %}" * 27, "more than"),
        ("{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('aa') }}", "more than"),
        ("{% set n = namespace(x=9) %}{% for a in range(20) %}{% set n.x = n.x * n.x %}{% endfor %}", "bits"),
        ("{% for a in range(99999) %}{{ messages[0].content.ljust(9999) }}{% endfor %}", "writes more than"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages[0].update(role='system') }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "SecurityError"),
        ("{{ raise_exception.__globals__.os }}", "SecurityError"),
        ("{{ strftime_now.__self__.year }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages | indent }}", "indents a list"),
    ],
)
def test_a_template_that_fails_loops_or_reaches_out_is_refused(tokenizer, source, reason):
    with pytest.raises(TemplateRefused, match=reason):
        written(source, tokenizer)


@pytest.mark.parametrize("source", ["{{ x", "{% for %}", "{% endif %}", "{% unheard_of %}", "{{ x | unheard_of }}"])
def test_what_is_no_jinja_is_refused(tokenizer, source):
    with pytest.raises(ModelFolderRefused, match="no Jinja template"):
        ChatTemplate(source, tokenizer)


SHARED = ["messages", "messages[0]", "messages[1].tool_calls", "messages[1].tool_calls[0].arguments", "tools"]
METHODS = sorted({*dir(list), *dir(dict)})


@pytest.mark.parametrize("shared", SHARED)
def test_no_template_changes_what_other_renderings_are_given(tokenizer, shared):
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": {"x": ["p", {"z": "w"}]}}]}
    plain = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}", tokenizer)
    filters = sorted(plain._environment.filters)
    attempts = [
        *(
            f"{{{{ m.{method}({given}) }}}}"
            for method in METHODS
            for given in ("", "0", "'a'", "'a', 'b'", "[('a', 1)]")
        ),
        *(
            f"{{{{ m | {name}{given} | list }}}}"
            for name in filters
            for given in ("", "(1)", "('a')", "('update', {})")
        ),
        *(f"{{{{ m | map('{name}'{given}) | list }}}}" for name in filters for given in ("", ", 1", ", 'a'")),
    ]
    messages, tools = plain.passage([*HELLO, call]), plain.passage([{"name": "f", "required": ["x"]}])
    before = plain.passages_written([messages], tools, generation=False, variables={})
    given = json.dumps([messages.sewn, tools.sewn])
    tried = 0
    for attempt in attempts:
        try:
            template = ChatTemplate(f"{{% set m = {shared} %}}{attempt}", tokenizer)
        except ModelFolderRefused:
            continue
        with suppress(TemplateRefused):
            template.passages_written([messages], tools, generation=False, variables={})
        tried += 1
        assert json.dumps([messages.sewn, tools.sewn]) == given, attempt
    assert tried > 300
    assert "hello" in before


def test_the_bounds_are_those_of_one_rendering(tokenizer):
    template = ChatTemplate("{% for a in range(60000) %}{% endfor %}done", tokenizer)
    for _ in range(20):
        assert template.written(HELLO, None, generation=False, variables={}) == "done"


def test_what_was_written_lately_is_not_written_again(tokenizer, monkeypatch):
    monkeypatch.setattr(template, "MOST_RENDERINGS", 2)
    chat, written = ChatTemplate("{{ messages[0].content }}", tokenizer), []
    rendered = chat._rendered
    monkeypatch.setattr(chat, "_rendered", lambda variables: written.append(1) or rendered(variables))

    def spoken(text, **variables):
        return chat.written([{"content": text}], None, generation=False, variables=variables)

    assert [spoken(text) for text in ("a", "b", "a", "b")] == ["a", "b", "a", "b"]
    assert len(written) == 2
    assert spoken("a", enable_thinking=True) == "a"
    assert spoken("b") == "b"
    assert len(written) == 3  # only the oldest was forgotten
    assert spoken("a") == "a"
    assert len(written) == 4


def test_long_renderings_are_kept_up_to_a_bound(tokenizer, monkeypatch):
    monkeypatch.setattr(template, "MOST_REMEMBERED", 10)
    chat = ChatTemplate("{{ messages[0].content }}", tokenizer)
    for text in ("a" * 6, "b" * 6, "c" * 20, "d"):
        assert chat.written([{"content": text}], None, generation=False, variables={}) == text
    assert list(chat._recent._written.values()) == ["d"]
    assert chat._recent._characters == 1


@pytest.mark.parametrize("taken", [1, 3, 300])
def test_texts_that_hold_seams_are_written_as_they_are_and_spell_no_mark(tokenizer, taken):
    text = "".join(map(chr, range(0x100000, 0x100000 + taken))) + "<|im_end|>"
    content = {"content": text, text: [text]}
    spelled = written("{{ messages[0].content }}{{ messages[0] | tojson }}", tokenizer, [content])
    assert spelled == text + json.dumps(content, ensure_ascii=False)
    assert tokenizer.secret_pattern.search(spelled) is None


def test_texts_that_leave_no_character_for_a_seam_are_refused(tokenizer):
    everything = "".join(map(chr, range(0x100000, 0x10FFFE)))
    with pytest.raises(TemplateRefused, match="65534 characters that could be a seam"):
        written("{{ messages[0].content }}", tokenizer, [{"content": everything}])
    assert written("{{ messages[0].content }}", tokenizer, [{"content": everything[:-1]}]) == everything[:-1]


def test_entries_of_a_message_hide_no_method_and_open_nothing(tokenizer):
    message = {"content": "c", "items": "i", "__class__": "k", "format": "f"}
    source = "{% set m = messages[0] %}{{ m.content }}{{ m.format }}{{ m.missing }}{{ m.items() | list | length }}"
    assert written(source, tokenizer, [message]) == "cf4"
    assert written("{{ messages[0].__class__ }}", tokenizer, [{"a": "b"}]) == ""
    with pytest.raises(TemplateRefused, match="SecurityError"):
        written("{{ messages[0].__class__.__mro__ }}", tokenizer, [{"a": "b"}])


READ_OFTEN = [
    "{{ 'a'.upper() }}{{ ' b '.strip() }}{{ 'a,b'.split(',') }}",
    "{{ 'a'.nothing }}{{ 'a'.__class__ }}{{ 'a'._own }}",
    "{{ '{}'.format(1) }}{% set f = '{}{}'.format %}{{ f(1, 2) }}{% set g = '{x}'.format_map %}{{ g({'x': 3}) }}",
    "{% set n = namespace(a=1, b='{}'.format) %}{{ n.a }}{{ n.b(2) }}{{ n.c }}{{ n.__class__ }}",
    "{{ namespace(a=1)._Namespace__attrs }}{{ '{0.__class__}'.format('a') }}",
    "{% for a in 'xyz' %}{{ loop.index0 }}{{ loop.last }}{{ loop.nextitem }}{% endfor %}",
    "{% for a in 'xyz' %}{{ loop.nothing }}{{ loop._length }}{{ loop.__class__ }}{% endfor %}",
    "{% for a in 'xyz' %}{{ loop.cycle('e', 'o') }}{{ loop.changed(a) }}{{ a.replace('x', 'w') }}{% endfor %}",
    "{{ {'a': 1}.a }}{{ {'a': 1}.b }}{{ {'items': 1}.items() | list }}{{ {'mro': 1}.mro }}{{ {}.mro }}",
    "{% set d = {'a': 1, 'items': 2, 'mro': 3, '_x': 4} %}{{ d.a }}{{ d.mro }}{{ d._x }}{{ d.items() | first }}",
    "{% set d = {'__class__': 1} %}{{ d.__class__ }}{% for d in [{'a': 5}, 'b'] %}{{ d.a }}{{ d.b }}{% endfor %}",
    "{{ 'a,b'.split(sep=',', maxsplit=1) }}{% for a in 'xy' %}{{ a.ljust(3) ~ a.join(['1', '2']) }}{% endfor %}",
]


@pytest.mark.parametrize("source", READ_OFTEN)
def test_what_a_template_reads_and_calls_is_what_jinjas_own_sandbox_gives_however_often_it_asks(tokenizer, source):
    expected = ImmutableSandboxedEnvironment().from_string(source * 3).render()
    assert written(source * 3, tokenizer) == expected


@pytest.mark.parametrize("reached", ["'a'.__class__.x", "'{0.__class__.x}'.format('a')", "namespace(a=1).__class__.x"])
def test_what_the_sandbox_hides_stays_hidden_when_it_was_asked_for_before(tokenizer, reached):
    read_before = "{% set n = namespace(a=1) %}{{ n.a }}{{ 'a'.upper() }}{{ n.__class__ }}{{ 'a'.__class__ }}"
    with pytest.raises(TemplateRefused, match="SecurityError"):
        written(read_before * 2 + "{{ " + reached + " }}", tokenizer)


def test_a_template_that_counts_for_itself_only_comes_to_its_bound_sooner(tokenizer, monkeypatch):
    monkeypatch.setattr(template, "MOST_STEPS", 10)
    assert written("{% for a in range(9) %}{{ a }}{% endfor %}", tokenizer) == "012345678"
    with pytest.raises(TemplateRefused, match="loops"):
        written("{% for a in range(9) %}{{ none | _step }}{% endfor %}", tokenizer)


def test_bounds_change_nothing_of_what_is_written(tokenizer):
    source = "{% set x %} a{{ 1 ~ none ~ 'b' }}{% endset %}{% set y | trim %} {{ x }} {% endset %}"
    assert written(source + "{% with z = x %}{{ y ~ z }}{{ 6 * 7 }}{% endwith %}", tokenizer) == "a1Noneb a1Noneb42"


def test_what_chat_templates_expect_of_jinja_is_there(tokenizer):
    source = (
        "{%- for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor -%}"
        "{% generation %}G{% endgeneration %}{{ strftime_now('%d %b %Y') }}{{ {'é': '<&>'} | tojson }}"
    )
    assert written(source, tokenizer) == '1G26 Jul 2024{"é": "<&>"}'


def test_json_that_the_template_escapes_comes_out_right(tokenizer):
    messages = [{"role": "user", "content": "<é🐎\U00100000"}]
    assert written("{{ messages[0].content | tojson(ensure_ascii=true) }}", tokenizer, messages) == (
        '"<\\u00e9\\ud83d\\udc0e\\udbc0\\udc00"'
    )


def test_the_template_writes_marks_and_text_does_not_even_in_two_parts(tokenizer):
    parts = [{"role": "user", "content": "<|im_"}, {"role": "user", "content": "end|>"}]
    source = "{{ messages[0].content }}{{ messages[1].content }}{{ '<|im_end|>' }}"
    ids = tokenizer.encode(written(source, tokenizer, parts))
    assert [tokenizer.mark_of(token) for token in ids if tokenizer.mark_of(token)] == ["<|im_end|>"]
    assert tokenizer.text(ids) == "<|im_end|><|im_end|>"
    rest = tokenizer.encode(
        written("{{ '<' + messages[0].content }}", tokenizer, [{"role": "u", "content": "|im_end|>"}])
    )
    assert not [token for token in rest if tokenizer.mark_of(token)]


def test_a_template_cannot_see_a_mark_in_text(tokenizer):
    messages = [{"role": "user", "content": "a</think>b"}]
    assert written("{{ '</think>' in messages[0].content }}", tokenizer, messages) == "False"


def replace_template(folder: Path, source: str) -> Path:
    (folder / "chat_template.jinja").write_text(source, "utf-8")
    return folder


@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_a_good_folder_passes_the_preflight(tmp_path, name):
    assert chat_problem(write_folder(tmp_path, name), tools=True) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('never') }}", "never"),
        ("{{ x", "no Jinja template"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "loops"),
        ("always the same", "first changes or the second lacks"),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "without a mark"),
        ("{% for m in messages %}{{ m.role + m.content }}<|im_end|>{% endfor %}{{ 'x' * 3 }}", "first changes"),
    ],
)
def test_a_template_that_cannot_be_talked_to_is_a_problem_with_field_value_and_remedy(tmp_path, source, message):
    folder = replace_template(write_folder(tmp_path, "qwen3"), source)
    problem = problem_here(folder, "auto", "auto", tools=False)
    assert problem is not None
    assert message in problem.message
    assert (problem.field, problem.value) == ("model.path", str(folder))
    assert problem.remedy
    assert chat_problem(folder) == problem


@pytest.mark.parametrize("source", ["{{ 'x' | center(100000000000) }}", "{{ messages | center(99999999999) }}"])
def test_a_template_that_asks_for_all_memory_ends_its_own_process_only(tmp_path, source):
    problem = chat_problem(replace_template(write_folder(tmp_path, "qwen3"), source))
    assert problem is not None
    assert problem.field == "model.path"


def test_a_filter_that_takes_hours_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "MOST_SECONDS", 2)
    slow = "{{ range(99999) | map('string') | map('center', 9999) | list | length }}"
    folder = replace_template(write_folder(tmp_path, "qwen3"), slow * 99)
    problem = chat_problem(folder)
    assert problem is not None
    assert problem.field == "model.path"


def test_tools_that_a_model_cannot_call_are_a_problem_of_tool_calls(tmp_path):
    problem = chat_problem(write_folder(tmp_path, "gemma"), tools=True)
    assert problem is not None
    assert problem.field == "model.tool_calls"
    assert chat_problem(tmp_path) is None
    assert chat_problem(tmp_path, tool_calls="code-fence", tools=True) is None


def test_a_folder_that_is_not_there_is_a_problem(tmp_path):
    problem = chat_problem(tmp_path / "nowhere")
    assert problem is not None
    assert "no such folder" in problem.message
