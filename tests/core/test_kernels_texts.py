"""RegexFullMatch, Tokenizer and TfIdfVectorizer against ONNX Runtime; the first two use RE2 expressions, which run in linear time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hetero_core import Core
from hetero_core.errors import UnsupportedNodesError
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import find_refusal
from hetero_core.network.graph import Node
from hetero_core.network.reader import read_network

TEXTS = np.array(
    ["", "abc", "ABC", "a\nb", "\u00e9t\u00e9", "12.5", "\u0663", "a b", "user@host.org", "\U0001f600", "a\0b"], dtype=object
)
PATTERNS = [
    "", ".*", "(?s).*", "(?i)abc", r"\d+", r"[[:alpha:]]+", r"\pL+", r"\w+", r"a\x{0a}b", "(a|ab)(c|bcd)?", r"^abc$", r"\Aabc\z", "a.b",
    r"[0-9]+\.[0-9]*", r"\C+", "(?P<user>[a-z]+)@(?P<host>[a-z.]+)", "[^a-z]+", "(?U)a.+", r"\bab?c\b", "a{1,3}bc", "\U0001f600|.",
]  # fmt: skip
OTHER_LANGUAGES = [r"(a)\1", "(?=a)b", "(?<=a)b", "a++", "(?>a)", "[a", "a{2000}", r"\Z", "(?(1)a|b)", "*a"]


def make_model(pattern: str) -> onnx.ModelProto:
    node = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern=pattern)
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.BOOL, ["N"])
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_matches_agree_with_onnxruntime(core: Core, device: str, pattern: str) -> None:
    model = make_model(pattern)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": TEXTS})[0]
    assert core.load_network(model, device).infer({"x": TEXTS})["y"].tolist() == expected.tolist()


@pytest.mark.parametrize("pattern", OTHER_LANGUAGES)
def test_pattern_of_another_language_is_refused(core: Core, pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused = core.query_network(make_model(pattern), "CPU").refused
    assert "which is none of RE2's: " in refused["RegexFullMatch_0"]
    with pytest.raises(UnsupportedNodesError, match="which is none of RE2's"):
        core.load_network(make_model(pattern), "CPU")
    assert capfd.readouterr() == ("", ""), "the engine writes nothing"
    with pytest.raises(Exception, match="(?i)regex|pattern"):
        onnxruntime.InferenceSession(make_model(pattern).SerializeToString(), providers=["CPUExecutionProvider"])


def test_half_of_a_pair_of_surrogates_is_no_error(core: Core) -> None:
    outputs = core.load_network(make_model(".*"), "CPU").infer({"x": np.array(["\ud800", "a"], dtype=object)})
    assert outputs["y"].shape == (2,)
    assert outputs["y"][1]


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+$b", "(.*a){12}b"])
def test_expression_with_exponential_backtracking_ends(core: Core, pattern: str) -> None:
    # An engine with backtracking needs 2^50,000 steps.
    loaded = core.load_network(make_model(pattern), "CPU")
    assert loaded.infer({"x": np.array(["a" * 50_000], dtype=object)})["y"].tolist() == [False]


def test_missing_package_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    tokens = {"mark": 0, "mincharnum": 1, "pad_value": "", "tokenexp": "a"}
    nodes = [
        Node("n", "RegexFullMatch", ("x",), ("y",), since_version=20, attributes={"pattern": "a"}),
        Node("n", "Tokenizer", ("x",), ("y",), domain="com.microsoft", since_version=0, attributes=tokens),
    ]
    assert [find_refusal(node, [None]) for node in nodes] == [
        "RegexFullMatch-20 needs google-re2, which is not installed; pip install hetero-core[text]",
        "com.microsoft:Tokenizer-1 needs google-re2, which is not installed; pip install hetero-core[text]",
    ]


SENTENCES = np.array(["ab cd  e", "", "fg\u00e9 x-1"], dtype=object)


def make_tokenizer(x: np.ndarray[Any, Any], **attributes: Any) -> onnx.ModelProto:
    settings = {"mark": 0, "pad_value": "#", "mincharnum": 1, **attributes}
    node = helper.make_node("Tokenizer", ["x"], ["y"], domain="com.microsoft", **settings)
    specs = [helper.make_tensor_value_info(name, TensorProto.STRING, shape) for name, shape in (("x", x.shape), ("y", None))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", specs[:1], specs[1:]), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    "attributes",
    [
        {"tokenexp": "[a-z]+"},
        {"tokenexp": "[a-z]+", "mincharnum": 2},
        {"tokenexp": "[a-zA-Z0-9_]+"},
        {"tokenexp": r"\w+", "mincharnum": 2},
        {"tokenexp": r"[\dx]+"},
        {"tokenexp": "."},
        {"tokenexp": "b?"},
        {"separators": [" "]},
        {"separators": [""]},
        {"separators": ["c", " +"]},
        {"tokenexp": "[0-9]{7}"},
        {"tokenexp": "a|ab"},
        {"tokenexp": "(f|fg)."},
        {"tokenexp": "[a-z]+?"},
        {"separators": ["(c| )"]},
    ],
    ids=lambda attributes: "-".join(f"{name}={value}" for name, value in attributes.items()),
)
@pytest.mark.parametrize("x", [SENTENCES, SENTENCES.reshape(1, 3)], ids=["vector", "matrix"])
def test_tokens_agree_with_onnxruntime(x: np.ndarray[Any, Any], attributes: dict[str, Any]) -> None:
    model = make_tokenizer(x, **attributes)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (tokens,) = compile_program(read_network(model)).run((x,))
    assert tokens.shape == expected.shape
    assert tokens.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"tokenexp": "[a"}, "has the expression '[a', which is none of RE2's: missing ]: [a"),
        ({"separators": ["(a)\\1"]}, "has the expression '(a)\\\\1', which is none of RE2's: invalid escape sequence: \\1"),
        ({"separators": ["b?"]}, "has the separator 'b?', which matches the empty text"),
        ({}, "needs either separators or a tokenexp"),
    ],
    ids=["broken", "backreference", "empty", "none"],
)
def test_expression_outside_re2_is_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedNodesError) as caught:
        compile_program(read_network(make_tokenizer(SENTENCES, **attributes)))
    assert f"com.microsoft:Tokenizer-1 {reason}" in str(caught.value)


def test_attribute_mark_is_refused() -> None:
    with pytest.raises(UnsupportedNodesError, match="attribute 'mark' of com.microsoft:Tokenizer-1 is 1; implemented: 0"):
        compile_program(read_network(make_tokenizer(SENTENCES, tokenexp=".", mark=1)))


@pytest.mark.parametrize("shape", [(40,), (1, 40), (9, 17), (3, 2), (4, 0), (0, 5)])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 3, 0), (2, 3, 2), (1, 2, 5)])
def test_n_grams_are_counted_as_by_onnxruntime(least: int, most: int, skips: int, mode: str, shape: tuple[int, ...]) -> None:
    pool = ["a", "b", "d", *("a", "a"), *("a", "c"), *("c", "b"), *("a", "b", "c"), *("b", "b", "b")]
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], min_gram_length=least, max_gram_length=most, max_skip_count=skips, mode=mode, pool_strings=pool,
        ngram_counts=[0, 3, 9], ngram_indexes=[4, 0, 7, 6, 1, 2, 3, 5], weights=[2.0, 0.5, 1.0, 3.0, 0.25, 1.5, 4.0, 0.125],
    )  # fmt: skip
    specs = [
        helper.make_tensor_value_info("x", TensorProto.STRING, shape),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph([node], "g", specs[:1], specs[1:]), opset_imports=opsets, ir_version=8)
    x = np.random.default_rng(0).choice(np.array(list("abcde"), object), shape)
    (counts,) = compile_program(read_network(model)).run((x,))
    if x.size:
        (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )
        np.testing.assert_array_equal(counts, expected, strict=True)
    else:
        np.testing.assert_array_equal(counts, np.zeros((*shape[:-1], 8), np.float32), strict=True)


def test_element_type_of_the_tokens_is_known() -> None:
    model = make_tokenizer(SENTENCES, tokenexp=".")
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    assert read_network(model).outputs[0].dtype == "string"


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_sequence_of_texts_is_joined(device: str) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (string[3] x) => (string[3] y, string[3] z) {
        s = SplitToSequence <axis = 0> (x) z = ConcatFromSequence <axis = 0> (s)
        t = SplitToSequence <axis = 0, keepdims = 0> (x) y = ConcatFromSequence <axis = 0, new_axis = 1> (t) }""")
    texts = ["a", "", "ccc"]
    with Core() as core:
        answer = core.load_network(model, device).infer({"x": np.array(texts, object)})
    assert answer["z"].tolist() == answer["y"].tolist() == texts
