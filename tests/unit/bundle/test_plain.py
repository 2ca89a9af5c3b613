"""What MONAI's parser leaves as it is, and what is refused for it."""

import logging
from importlib import import_module

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monai.bundle import ConfigParser

from medpfl.bundle.description import inference, metadata, readme, refusal
from medpfl.core.errors import UserError, printable, printably
from medpfl.core.plain import plain_problem, require_plain
from medpfl.data.inputs import stored_images

SPECIAL = st.sampled_from(["$", "@", "%", "#", "::", ":", "+", "_", "__local_refs", "_target_", " ", "a", "`", "<b>"])
TEXTS = st.lists(SPECIAL | st.characters(), max_size=6).map("".join)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.none() | st.integers() | st.floats(allow_nan=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def card(site="site-1", model_args=None):
    return {
        "site": site,
        "algorithm": "fedap",
        "round": 3,
        "model": {"name": "lenet5", "in_channels": 1, "num_classes": 2, "model_args": model_args or {}, "values": 7},
        "sha256": "0" * 64,
        "test": None,
        "versions": {"medpfl": "1", "monai": "1.6", "torch": "2", "numpy": "2"},
    }


def parsed(made, inputs):
    """What MONAI makes of a bundle's two files."""
    parser = ConfigParser(inference(made, inputs) | {"_meta_": metadata(made, inputs)})
    parser.parse()
    return parser


@settings(max_examples=200)
@given(st.lists(TEXTS, min_size=1, max_size=3), TEXTS)
@example(["$__import__('os').getpid()", "b"], "site-1")
@example(["grade @::x", "b"], "site-1")
@example(["@", "b"], "site-1")
@example(["C#", "b"], "site-1")
def test_names_are_refused_or_come_back_from_monai_as_they_are(classes, site):
    made, inputs = card(site), stored_images(tuple(classes), 1, 28, 28)
    if problem := refusal(made, inputs):
        assert problem.startswith(("classes[", "site: "))
        assert problem.isprintable()
        return
    parser = parsed(made, inputs)
    assert parser.get_parsed_content("evaluator::classes") == classes
    assert parser.get_parsed_content("evaluator::model")["site"] == site
    said = parser.get_parsed_content("_meta_")
    assert list(said["network_data_format"]["outputs"]["pred"]["channel_def"].values()) == classes
    assert said["authors"] == site
    assert len(readme(made, inputs).splitlines()) == len(readme(card(), inputs).splitlines())


@settings(max_examples=150)
@given(st.dictionaries(TEXTS, VALUES, max_size=3))
def test_model_arguments_are_refused_or_come_back_from_monai_as_they_are(arguments):
    made, inputs = card(model_args=arguments), stored_images(("a", "b"), 1, 28, 28)
    if problem := refusal(made, inputs):
        assert problem.startswith("model_args")
        assert problem.isprintable()
        return
    assert parsed(made, inputs).get_parsed_content("network_def::model_args") == arguments


@pytest.mark.parametrize(
    "value",
    [
        "no emphysema", "Müller-Weiss", "50 % stenosis", "a@b", "mild (<5 $)", "肺气肿", "", None, True, 0, -1.5e-3,
        ["LeakyReLU", {"negative_slope": 0.1}], {"spatial_dims": 2, "act": None},
    ],
)  # fmt: skip
def test_ordinary_values_are_plain(value):
    assert plain_problem(value, "model_args") is None


DEEP = []
for _ in range(5000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": ["x", "@network"]}, r"f.a\[1\]: '@network' begins with '@', which MONAI's bundles take for a reference"),
        ("%/etc/x.json", "f: .* take for another file or item"),
        ("red\x1b[31m", r"f: 'red\\x1b\[31m' has line breaks or other characters that are not printed"),
        ("a\n# b", "f: .* has line breaks"),
        ("\u202egnp", "f: .* not printed"),
        ("x" * 201, r"f: 'x{40}'... has 201 characters; at most 200 are allowed"),
        ({"+a": 1}, r"f: the key '\+a' may mean something to MONAI's bundles; use letters"),
        ({"a::b": 1}, "f: the key 'a::b' may"),
        ({"_disabled_": True}, "f: the key '_disabled_' may"),
        ({"": {"_target_": "os.abort"}}, "f: the key '' may"),
        ({1: 2}, "f: the key of type int may"),
        ([float("nan")], r"f\[0\]: nan is no finite number"),
        (-(2**63), "f: a whole number beyond 63 bits"),
        ([{1, 2}], r"f\[0\]: set is no plain value"),
        (DEEP, "lists and dictionaries in more than 16 levels"),
    ],
)
def test_what_is_not_plain_is_named(value, words):
    with pytest.raises(UserError, match=words):
        require_plain(value, "f")


def test_a_number_that_python_cannot_even_write_is_refused():
    assert plain_problem({"a": 10**6000}, "f") == "f.a: a whole number beyond 63 bits; use a smaller one"


def test_a_terminal_gets_no_commands():
    assert printable("a\x1b[2J\x9b1m\u202eb\rc\nd é") == r"a\x1b[2J\x9b1m\u202eb\rc" + "\nd é"


def test_warnings_with_names_of_files_command_no_terminal(medpfl, capsys):
    """The command line's, which go to the terminal by Python's last resort, and a bundle's in MONAI's command."""
    medpfl("--version")
    record = logging.LogRecord(
        "medpfl.data", logging.WARNING, "", 0, "%s is not read", ("\x1b]0;owned\x07.heic",), None
    )
    logging.lastResort.handle(record)
    assert capsys.readouterr().err == "\\x1b]0;owned\\x07.heic is not read\n"
    for module in ("answered", "inference", "masks"):
        assert printably in import_module(f"medpfl.bundle.{module}").logger.filters
