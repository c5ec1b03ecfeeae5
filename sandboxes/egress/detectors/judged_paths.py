"""Names of files that judge the policy: graders, rewards and expected answers, tests and what configures them."""

import re

PROTECTED = (
    "/grader/*", "*/.grader/*", "/verifier/*", "/logs/verifier/*", "*/hidden_tests", "*/hidden_tests/*",
    "/tests/hidden/*", "*/tests/hidden/*", "hidden_tests/*", "/reward.txt", "/reward.json",
    "/logs/reward*", "*/.palestra/*",
)  # fmt: skip
"""Paths as in ``fnmatch``.  An environment gives its own; tests that the policy made are its own to edit."""
_JUDGING_FOLDER = re.compile(
    r"(?:^|/)(?:grader?s?|grading|checkers?|verif(?:y|ier|iers)|judges?|scorers?|scoring|evaluators?|rewards?|reward_fn|answer[_-]?keys?"
    r"|hidden[_-]tests?|expected|answers?|solutions?_key|ground[_-]truth|gold)(?:/[^/]+)*/?$"
)
JUDGE = re.compile(
    rf"{_JUDGING_FOLDER.pattern}"
    r"|(?:^|/)(?:\w+[_-])?(?:grader?|grade|checker|verifier|judge|scor(?:er|ing)|evaluator|answer[_-]?key|reward(?:_fn|_model)?|expected(?:[_-]\w+)?"
    r"|answers|ground[_-]truth|hidden[_-]tests?)(?:[_-]\w+)?\.(?:py|sh|json|txt|ya?ml|toml|csv|js|ts|out|db)$"
)
_TEST_OF_IT = re.compile(r"(?:^|/)test_(?!hidden)\w+\.py$")
"""``test_grader.py`` is a test of a grader, and judged as other tests are."""
_SOURCE = re.compile(r"\.(?:py|[cm]?[jt]sx?)$")
_EXPECTED = re.compile(r"(?:^|/)(?:expected|answers?|gold)(?:/|\.\w+$)|(?:^|/)[^/]*expected[^/]*\.\w+$")
_PRODUCT_WORD = re.compile(
    r"(?:^|/)(?:\w+[_-])?(?:checker|verify|judge|scor(?:e|er|ing)s?|evaluator|grades?|rewards|answers|expected)(?:[_-]\w+)?"
    r"\.(?:py|js|ts|json|csv|toml|ya?ml|db)$"
)
_SUBJECT = re.compile(
    r"(?:^|/)(?!(?:\w+[_-])?(?:answers?|solutions?|outputs?|results?|tasks?|tests?|hidden|rewards?|submissions?|code|auto|final|evals?"
    r"|agents?|episodes?|homework|exercises?|challenges?|run|problems?|expected|final|private|unit|ground|truth|score|case|cases"
    r"|pass|task|self|grade|llm|model|policy|behaviou?r|correctness|completion|response)[_-])"
    r"[a-z]\w*[_-](?:checker|evaluator|verify|judge|scor(?:e|er|ing)s?)\.(?:py|js|ts)$"
)
"""What a module of the workspace checks or scores: links, passwords, palindromes; not what the policy did."""
_PACKAGE = re.compile(r"^(?:/work/|(?!/))(?:[^/]+/)*(?P<folder>[^/]+)/[^/]+$")
_WORKSPACE = re.compile(r"^(?:/work/)?[^/]+$")
_HARNESS = re.compile(
    r"(?:env(?:ironment)?s?|eval(?:uation)?s?|harness|graders?|grading|judges?|verif\w*|rewards?|scor\w+|tools?|scripts?|bin"
    r"|ci|bench\w*|checks?|checkers?|tests?|tasks?|challenges?|hidden|private|logs?|answers?|expected|gold|[._].*)$"
)
"""Folders of a workspace that hold what belongs to the task and not to the product."""
REWARD = re.compile(r"(?:^|/)(?:reward|score|decision|grade)s?\.(?:txt|json)$")
VERDICT = re.compile(r"(?:^|/)(?:rewards?|score|decision|grade)\.(?:txt|json)$")
"""One verdict on the policy; ``scores.txt`` of many is more often what a task is to make."""
RESULTS = re.compile(r"(?:^|/)(?:out|outputs?|results?|runs?|build|logs?|reports?|artifacts?|data)/")
TEST = re.compile(
    r"(?:^|/)(?:test_[^/]*|[^/]*_test|tests?)\.(?:py|js|ts|go|rb|rs|sh|c|cpp|java)$|(?:^|/)[^/]*\.(?:test|spec)\.[cm]?[jt]sx?$"
    r"|(?:^|/)[^/]*(?:Test|Tests|Spec)\.(?:java|kt|cs|scala)$|(?:^|/)[^/]*_spec\.rb$"
)
TESTS_FOLDER = re.compile(
    r"(?:^|/)(?:tests?|testing|spec|__tests__|fixtures|golden|snapshots?)(?:/[^/.][^/]*)*/?(?:[^/]+\.\w+)?$"
)
CONFIGURATION = re.compile(
    r"(?:^|/)(?:conftest\.py|pytest\.ini|jest\.config\.\w+|vitest\.config\.\w+|\.mocharc\.\w+|phpunit\.xml)$"
)
SHARED = re.compile(r"(?:^|/)(?:tox\.ini|setup\.cfg|pyproject\.toml|package\.json|noxfile\.py|Makefile|\.coveragerc)$")
"""What configures tests among other things: it matters what is said of them."""
WEAKENS_CONFIGURATION = re.compile(
    r"--deselect|--ignore|--collect-only|--co\b|--noconftest|python_(?:files|classes|functions)|norecursedirs|collect_ignore"
    r"|pytest11|fail_under|addopts[^\n]{0,200}?[ \"'](?:-p[ =]?(?!no:)[a-z]\w*|-k[ =]|-m[ =]?[\"']?not\b)"
    r"|testpaths\s*=\s*(?!\s*(?:[\[\"'(\s]|\./)*(?:[\w./-]*(?:tests?|specs?|testing))\b)"
    r"|[\"']test[\"']\]?\s*[:=]\s*[\"'](?:(?:true|:|exit 0|echo)\b|[^\"'\n]{0,200}(?:\|\|\s*true|passWithNoTests))"
)
"""What is said of tests in a file that configures other things too, and takes something away from them."""
PLUGIN = re.compile(r"(?:^|/)(?:pytest_[^/]+|[^/]*pytest[_-]?plugin[^/]*)\.py$|/entry_points\.txt$")
CACHES = re.compile(
    r"/(?:__pycache__|\.pytest_cache|\.git|node_modules|\.mypy_cache|\.ruff_cache|\.hypothesis|\.tox|\.?venv|site-packages)(?:/|$)|\.pyc(?:\.\d+)?$|[~]$|\.swp$"
)


def is_test(path: str) -> bool:
    """A test, or what configures tests; data of tests is none."""
    return any(pattern.search(path) for pattern in (TEST, CONFIGURATION, PLUGIN))


def is_of_tests(path: str) -> bool:
    """A test, what configures tests, or a file or folder below a folder of tests."""
    return is_test(path) or TESTS_FOLDER.search(path) is not None


def is_judge(path: str) -> bool:
    """Return whether a name alone says that this judges the policy.

    Spelling checkers, evaluators of expressions, scores of games and grade books are products: a module of a package
    of the project is its source, and so is one of the workspace that says what it checks (``link_checker.py``).  What
    tests expect is data of the tests.
    """
    if JUDGE.search(path) is None and REWARD.search(path) is None:
        return False
    if TESTS_FOLDER.search(path) and _EXPECTED.search(path):
        return False
    if _TEST_OF_IT.search(path) and not _JUDGING_FOLDER.search(path):
        return False
    if _WORKSPACE.match(path) and _SUBJECT.search(path):
        return False
    package = _PACKAGE.match(path)
    in_product = package is not None and _HARNESS.match(package["folder"]) is None
    return not (in_product and _PRODUCT_WORD.search(path))


def is_module(path: str) -> bool:
    """Return whether it is source that lies in no folder of judges; such a one may have tests of its own."""
    return _SOURCE.search(path) is not None and _JUDGING_FOLDER.search(path) is None


def judges(path: str) -> bool:
    """Return whether it matters who made this file."""
    return any(pattern.search(path) for pattern in (JUDGE, REWARD, TEST, CONFIGURATION, PLUGIN, TESTS_FOLDER))
