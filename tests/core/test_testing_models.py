"""hetero_core.testing.models: each model is valid and deterministic, has sane outputs, and gives equal results in two engines."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from hetero_core.testing import models
from hetero_core.testing.compare import assert_same
from hetero_core.testing.digits import draw_digits, make_digits_model

SMALL = ["if_model", "loop_model", "lstm_model", "dynamic_batch_model"]
# The reference evaluator takes seconds for squeezenet; it is slower for the rest, and wrong about LRN.


def run_onnxruntime(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def test_light_model_has_sane_outputs_and_two_engines_agree():
    model = models.light_model("squeezenet")
    inputs = models.light_inputs(model)
    (output,) = run_onnxruntime(model, inputs)
    assert output.size == 1000
    assert len(np.unique(output)) > 750
    assert 0.1 < output.std() < np.abs(output).max() < 1000
    assert_same(ReferenceEvaluator(model).run(None, inputs), [output])


@pytest.mark.parametrize("name", ["densenet121", "shufflenet"])
def test_larger_light_model_gives_distinct_outputs(name):
    model = models.light_model(name)
    (output,) = run_onnxruntime(model, models.light_inputs(model))
    assert len(np.unique(output)) == output.size == 1000
    assert 0.1 < output.std() < np.abs(output).max() < 1000


def test_light_model_keeps_its_answer_in_the_form_of_the_file():
    old, new = models.light_model("inception_v1", None), models.light_model("inception_v1")
    assert (old.ir_version, old.opset_import[0].version) == (3, 9)
    assert (new.ir_version, new.opset_import[0].version) == (10, 21)
    inputs = models.light_inputs(new)
    assert list(models.light_inputs(old)) == list(inputs)
    assert_same(run_onnxruntime(old, inputs), run_onnxruntime(new, inputs))


@pytest.mark.parametrize("opset", [None, 21])
def test_light_model_is_valid_and_holds_no_constant_weights(opset):
    model = models.light_model("shufflenet", opset)
    onnx.checker.check_model(model, full_check=True)
    assert not [node.name for node in model.graph.node if node.op_type in ("ConstantOfShape", "Softmax")]
    for initializer in model.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        assert array.dtype == np.int64 or len(np.unique(array)) > 1, initializer.name


def test_light_model_lists_initializers_as_inputs_only_in_ir_3():
    for opset, expected in ((None, True), (21, False)):
        graph = models.light_model("squeezenet", opset).graph
        listed = {value.name for value in graph.input} & {initializer.name for initializer in graph.initializer}
        assert bool(listed) is expected
        assert not listed or len(listed) == len(graph.initializer)


def test_light_model_keeps_output_name_after_softmax_is_dropped():
    graph = models.light_model("squeezenet").graph
    assert [value.name for value in graph.output] == ["softmaxout_1"] == list(graph.node[-1].output)


def test_light_model_of_unknown_name_is_refused():
    with pytest.raises(ValueError) as caught:
        models.light_model("resnet51")
    assert str(caught.value) == (
        "no light model 'resnet51', did you mean 'resnet50' or 'densenet121' or 'zfnet512'? there are "
        "alexnet, densenet121, inception_v1, inception_v2, resnet50, shufflenet, squeezenet, vgg19, zfnet512"
    )


def test_small_model_of_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no small model 'residul', did you mean 'residual'"):
        models.small_model("residul")


@pytest.mark.parametrize("build", [lambda: models.light_model("squeezenet"), *(getattr(models, name) for name in SMALL)])
def test_model_is_the_same_on_every_call(build):
    assert build().SerializeToString(deterministic=True) == build().SerializeToString(deterministic=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SMALL)
def test_small_model_gives_sane_outputs_and_two_engines_agree(name, seed):
    model = getattr(models, name)()
    inputs = models.light_inputs(model, seed)
    outputs = run_onnxruntime(model, inputs)
    assert all(len(np.unique(output)) == output.size and np.abs(output).max() < 100 for output in outputs)
    assert_same(ReferenceEvaluator(model).run(None, inputs), outputs)


def test_if_model_takes_another_branch_for_another_condition():
    model = models.if_model()
    inputs = models.light_inputs(model)
    outputs = [run_onnxruntime(model, inputs | {"condition": np.array(choice)})[0] for choice in (True, False)]
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1
    assert {bool(models.light_inputs(model, seed)["condition"]) for seed in range(8)} == {True, False}


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_loop_model_stacks_one_row_for_each_turn(turns):
    model = models.loop_model()
    inputs = models.light_inputs(model) | {"trip_count": np.array(turns)}
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    state, rows = inputs["x"].astype(np.float64), []
    for _ in range(turns):
        state = np.tanh(state @ weight - inputs["x"])
        rows.append(2 * state.mean(axis=1))
    last, stacked = run_onnxruntime(model, inputs)
    assert_same(last, state.astype(np.float32))
    assert_same(stacked, np.array(rows, np.float32).reshape(turns, 4))


def test_lstm_model_depends_on_its_initial_state():
    model = models.lstm_model()
    inputs = models.light_inputs(model)
    for state in ("initial_h", "initial_c"):
        changed = run_onnxruntime(model, inputs | {state: inputs[state] * 2})
        assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(changed, run_onnxruntime(model, inputs), strict=True))


def test_row_of_an_image_does_not_depend_on_the_batch():
    model = models.dynamic_batch_model()
    images = models.light_inputs(model)["images"]
    assert images.shape == (models.SYMBOLIC_SIZE, 3, 16, 16)
    (scores,) = run_onnxruntime(model, {"images": images})
    for row, image in zip(scores, images, strict=True):
        assert_same(run_onnxruntime(model, {"images": image[None]})[0][0], row)


def test_light_inputs_depend_on_the_seed():
    model = models.dynamic_batch_model()
    first, again, reseeded = (models.light_inputs(model, seed)["images"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, reseeded)


def test_importing_models_and_compare_does_not_import_onnx():
    code = "import sys, hetero_core.testing.models, hetero_core.testing.compare;print('onnx' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_digits_are_right_by_a_clear_margin():
    images, digits = draw_digits(360)
    (probabilities,) = run_onnxruntime(make_digits_model(), {"image": images})
    assert probabilities.shape == (360, 10)
    assert probabilities[np.arange(360), digits].min() > 0.8
