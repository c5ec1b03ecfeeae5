"""Names of files that judge the policy: graders, rewards and expected answers, tests and what configures them."""

import re

PROTECTED = (
    "/grader/*", "*/.grader/*", "/verifier/*", "/logs/verifier/*", "*/hidden_tests", "*/hidden_tests/*",
    "/tests/hidden/*", "*/tests/hidden/*", "hidden_tests/*", "/reward.txt", "/reward.json",
    "/logs/reward*", "*/.palestra/*",
)  # fmt: skip
"""Paths as in ``fnmatch``.  An environment gives its own; tests that the policy made are its own to edit."""
JUDGE = re.compile(
    r"(?:^|/)(?:grader?s?|grading|checkers?|verif(?:y|ier|iers)|judges?|scorers?|scoring|evaluators?|rewards?|reward_fn|answer[_-]?keys?"
    r"|hidden[_-]tests?|expected|answers?|solutions?_key|ground[_-]truth|gold)(?:/[^/]+)*/?$"
    r"|(?:^|/)(?:\w+[_-])?(?:grader?|grade|checker|verifier|judge|scor(?:er|ing)|evaluator|answer[_-]?key|reward(?:_fn|_model)?|expected(?:[_-]\w+)?"
    r"|answers|ground[_-]truth|hidden[_-]tests?)(?:[_-]\w+)?\.(?:py|sh|json|txt|ya?ml|toml|csv|js|ts|out|db)$"
)
REWARD = re.compile(r"(?:^|/)(?:reward|score|verdict|grade)s?\.(?:txt|json)$")
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
OF_TESTS = re.compile(
    r"addopts|testpaths|python_(?:files|classes|functions)|norecursedirs|collect_ignore|--deselect|--ignore"
    r"|-p [a-z]\w*|pytest11|fail_under|filterwarnings|\"test\"\s*:"
)
PLUGIN = re.compile(r"(?:^|/)(?:pytest_[^/]+|[^/]*pytest[_-]?plugin[^/]*)\.py$|/entry_points\.txt$")
CACHES = re.compile(
    r"/(?:__pycache__|\.pytest_cache|\.git|node_modules|\.mypy_cache|\.ruff_cache|\.hypothesis|\.tox|\.?venv|site-packages)(?:/|$)|\.pyc(?:\.\d+)?$|[~]$|\.swp$"
)


def is_test(path: str) -> bool:
    """A test, or what configures tests; data of tests is none."""
    return any(pattern.search(path) for pattern in (TEST, CONFIGURATION, PLUGIN))


def judges(path: str) -> bool:
    """Whether it matters who made this file."""
    return any(pattern.search(path) for pattern in (JUDGE, REWARD, TEST, CONFIGURATION, PLUGIN, TESTS_FOLDER))
