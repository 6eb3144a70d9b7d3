"""The recipe of the image, as far as it can be judged without building it; `make image` builds it."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from .tools import DEPLOY, PROJECT, output

RECIPE = PROJECT / "Dockerfile"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def instructions() -> list[str]:
    """Return the recipe's instructions, each in one line."""
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def last_stage() -> list[str]:
    lines = instructions()
    first = max(i for i, line in enumerate(lines) if line.startswith("FROM "))
    return lines[first:]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (DEPLOY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def needed(names: list[str]) -> set[str]:
    """Return the distributions that these need, and those need, as they are installed here."""
    found: set[str] = set()
    while names:
        name = normal(names.pop())
        if name in found:
            continue
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:  # only where another Python or system is
            continue
        found.add(name)
        names += [m[0] for r in requirements if "extra ==" not in r and (m := _NAME.match(r))]
    return found


def test_hadolint_has_nothing_to_say_against_it() -> None:
    assert not output("hadolint", RECIPE)


def test_the_base_is_an_argument_and_both_stages_begin_with_it() -> None:
    lines = instructions()

    assert [line for line in lines if line.startswith("FROM ")] == [
        "FROM ${BASE} AS build",
        "FROM ${BASE}",
    ]
    base = next(line for line in lines if line.startswith("ARG BASE="))
    assert "-slim-" in base
    assert ":latest" not in base


def test_every_argument_has_a_version_or_is_made_of_those_that_do() -> None:
    arguments = [line for line in instructions() if line.startswith("ARG ")]

    assert arguments
    assert all("=" in argument for argument in arguments)


def test_what_is_kept_has_libnuma_and_neither_compiler_nor_pip() -> None:
    kept = " ".join(last_stage())

    assert '"libnuma1=${LIBNUMA_VERSION}"' in kept
    assert not re.search(r"\b(gcc|g\+\+|build-essential|python3-dev|pip)\b", kept)
    assert "--without-pip /opt/numalet" in " ".join(instructions())


def test_it_runs_numalet_and_without_root_unless_asked_to() -> None:
    kept = last_stage()

    assert 'ENTRYPOINT ["numalet"]' in kept
    assert "USER 65532:65532" in kept


@pytest.mark.parametrize("name", ["agent", "pyproject.toml", "README.md", "LICENSE"])
def test_what_is_copied_is_not_ignored(name: str) -> None:
    ignored = (PROJECT / ".dockerignore").read_text().splitlines()

    assert ignored[0] == "*"
    assert f"!{name}" in ignored


def test_every_package_that_the_agent_needs_is_pinned() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["nrt"], *extras["devices"]]

    names = needed([m[0] for requirement in wanted if (m := _NAME.match(requirement))])

    assert names <= set(pins())


def test_what_builds_the_package_is_pinned_too() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    names = {m[0] for r in project["build-system"]["requires"] if (m := _NAME.match(r))}
    (environment,) = (line for line in instructions() if line.startswith("ENV PIP_CONSTRAINT"))

    assert names <= set(pins())
    assert environment.split()[1:] == [
        "PIP_CONSTRAINT=/build/constraints.txt",  # pip before 25.3 builds with it
        "PIP_BUILD_CONSTRAINT=/build/constraints.txt",
    ]
