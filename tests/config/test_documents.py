"""Files are read within bounds, without surprises, and with the line of every field."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.documents import MAX_BYTES, FieldPath, field_text, parse, read_stream, read_text
from agent.errors import InputError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def data_of(text: str, name: str = "f.yaml") -> object:
    [document] = parse(text, name=name)
    return document.data


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("4", 4),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("~", None),
        ("'4'", "4"),
        # other readers of YAML take these for 1000, 90, 8, true, a date and not-a-number
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("on", "on"),
        ("2026-11-29", "2026-11-29"),
        (".nan", ".nan"),
    ],
)
def test_a_scalar_is_what_json_would_make_of_it(scalar: str, value: object) -> None:
    assert data_of(f"key: {scalar}") == {"key": value}


@given(data=st.dictionaries(st.text(), JSON_VALUES))
def test_json_is_read_as_json(data: dict[str, object]) -> None:
    text = json.dumps(data, indent="\t")

    assert data_of(text, "f.json") == data
    assert data_of(text, "stdin") == data


def test_documents_that_say_nothing_are_left_out() -> None:
    documents = parse("# nothing\n---\na: 1\n---\n---\nb: 2\n", name="f.yaml")

    assert [(d.data, d.where()) for d in documents] == [
        ({"a": 1}, "f.yaml:3"),
        ({"b": 2}, "f.yaml:6"),
    ]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("spec", "containers", 1, "name"), 6),
        (("spec", "containers", 1, "resources", "limits", "cpu"), 8),
        (("spec", "containers", 1, "resources", "requests"), 7),
        (("spec", "containers", 7), 3),
        (("absent", "spec"), 2),
    ],
)
def test_a_field_is_found_by_line_or_the_nearest_around_it_is(path: FieldPath, line: int) -> None:
    text = (
        "# a comment\nspec:\n  containers:\n  - name: a\n"
        "  # b\n  - name: b\n    resources:\n      limits: {cpu: 4}\n"
    )
    [document] = parse(text, name="f.yaml")

    assert document.where(path) == f"f.yaml:{line}"


def test_fields_of_json_have_lines_too() -> None:
    [document] = parse('{\n\t"a": [\n\t\t1,\n\t\t2]\n}', name="f.json")

    assert document.where(("a", 1)) == "f.json:4"


def test_a_path_reads_like_one_of_kubernetes() -> None:
    path = ("spec", "containers", 0, "resources", "limits", "hugepages-2Mi")

    assert field_text(path) == "spec.containers[0].resources.limits[hugepages-2Mi]"


ALIAS_BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: [1,\n", 3, "is not YAML"),
        ("a: 1\na: 2\n", 2, "'a' is repeated"),
        ("a: 1\nb:\n  <<: {c: 1}\n", 3, "merge keys"),
        ("a: !!python/object:os.system x\n", 1, "tag"),
        ("a: !x {b: 1}\n", 1, "tag"),
        ("[1, 2]: 3\n", 1, "a key must be a text"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        parse(text, name="f.yaml")

    assert caught.value.where == f"f.yaml:{line}"


@pytest.mark.parametrize("text", [ALIAS_BOMB, "a: &a\n  b: *a\n", "- " * 500 + "a"])
def test_what_would_grow_beyond_bounds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"f\.yaml:1: is too large"):
        parse(text, name="f.yaml")


def test_the_deepest_nesting_is_refused_and_harms_nobody() -> None:
    with pytest.raises(InputError, match="nest"):
        parse("[" * 100_000, name="f.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "'a' is repeated"),
        ('{"a": NaN}', "NaN is not a JSON value"),
        ("{'a': 1}", "is not JSON"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_what_is_not_plain_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        parse(text, name="f.json")


@given(text=st.text(alphabet=st.sampled_from("a-:[]{}&*!<|>'\"#%@\n\t \0\ufeff\x85"), max_size=40))
def test_any_text_gives_documents_or_an_input_error(text: str) -> None:
    for name in ("f.yaml", "f.json"):
        with contextlib.suppress(InputError):  # any other exception fails the test
            parse(text, name=name)


def test_a_control_character_is_refused() -> None:
    with pytest.raises(InputError, match=r"f\.yaml: is not YAML"):
        parse("a: \x01", name="f.yaml")


def test_a_file_is_bounded_and_is_utf8(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is larger than"):
        read_stream(io.BytesIO(b" " * (MAX_BYTES + 1)), name="f")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_stream(io.BytesIO(b"a: \xff"), name="f")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_text(tmp_path / "absent.yaml")
    assert read_stream(io.BytesIO(b"\xef\xbb\xbfa: 1"), name="f") == "a: 1"
