"""hetero_core.testing.models: models are valid and deterministic; the kit's level models compares their outputs with two engines."""

import subprocess
import sys

import numpy as np
import onnx
import pytest

from hetero_core.testing import models
from hetero_core.testing.digits import draw_digits, make_digits_model
from hetero_core.testing.reference_session import open_reference_session

SMALL = ["if_model", "loop_model", "lstm_model", "dynamic_batch_model"]


def test_light_model_is_valid_and_holds_no_constant_weights():
    model = models.light_model("shufflenet")
    onnx.checker.check_model(model, full_check=True)
    assert not [node.name for node in model.graph.node if node.op_type in ("ConstantOfShape", "Softmax")]
    for initializer in model.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        assert array.dtype == np.int64 or len(np.unique(array)) > 1, initializer.name


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


def test_importing_models_and_compare_does_not_import_onnx():
    code = "import sys, hetero_core.testing.models, hetero_core.testing.compare;print('onnx' in sys.modules)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "False"


def test_digits_are_right_by_a_clear_margin():
    images, digits = draw_digits(360)
    (probabilities,) = open_reference_session(make_digits_model().SerializeToString()).run(None, {"image": images})
    assert probabilities.shape == (360, 10)
    assert probabilities[np.arange(360), digits].min() > 0.8
