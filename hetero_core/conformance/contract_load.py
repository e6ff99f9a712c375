"""Load: every form of a model can be loaded, any number of times, with the inputs and outputs of the model."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

from hetero_core.conformance.check import CheckContext, Skip, check, require, require_equal, require_error
from hetero_core.conformance.samples import iterate_samples, load_sample, make_sample, make_samples
from hetero_core.errors import ClosedError


@check("contract")
def inputs_and_outputs_are_those_of_the_model(context: CheckContext) -> None:
    """Names, element types and shapes of a loaded network are the model's, in its order; symbolic sizes stay symbolic."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair", "scalar").items():
        loaded = context.load(sample.network)
        for side in ("inputs", "outputs"):
            specs = [(spec.name, spec.type) for spec in getattr(loaded, side)]
            require_equal(specs, [(spec.name, spec.type) for spec in getattr(sample.network, side)], f"{side} of '{form}'")
        require_equal(loaded.name, sample.network.name, "the name of the loaded network")
        require_equal(loaded.fingerprint, sample.network.fingerprint, "the fingerprint of the loaded network")


@check("contract")
def every_form_of_a_model_loads(context: CheckContext) -> None:
    """A path, bytes, a ModelProto and a Network load alike, also from a folder whose name is not ASCII."""
    from hetero_core.network.writer import network_to_bytes, network_to_proto  # import onnx

    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    with tempfile.TemporaryDirectory(prefix="größe-模型-") as folder:
        path = Path(folder) / "модель.onnx"
        path.write_bytes(network_to_bytes(sample.network))
        for model in (path, str(path), path.read_bytes(), network_to_proto(sample.network), sample.network):
            outputs = context.load(model).infer(inputs)
            sample.require_right(outputs, inputs, f"loaded from {type(model).__name__}")


@check("contract")
def network_may_be_loaded_many_times(context: CheckContext) -> None:
    """Five loads of one network are independent: the remaining loads still run after the first is closed."""
    sample = make_sample(context, "chain")
    loaded = [context.load(sample.network) for _ in range(5)]
    for index, load in enumerate(loaded):
        inputs = sample.draw(context.seed + index)
        sample.require_right(load.infer(inputs), inputs, f"load {index}")
        load.close()
        require_error(ClosedError, load.infer, "a loaded network that was closed", inputs)
        load.close()


@check("contract")
def constant_may_be_an_output(context: CheckContext) -> None:
    """An output that is a constant of the model has its value, and belongs to the caller: writing to it changes no later run."""
    _check_own_outputs(context, "constant")


@check("contract")
def input_may_be_an_output(context: CheckContext) -> None:
    """An output that is an input has its value, and belongs to the caller."""
    _check_own_outputs(context, "through")


def _check_own_outputs(context: CheckContext, form: str) -> None:
    sample, loaded = load_sample(context, form)
    inputs = sample.draw(context.seed)
    originals = {name: value.copy() for name, value in inputs.items()}
    for turn in ("first", "second"):
        outputs = loaded.infer(inputs)
        sample.require_right(outputs, originals, f"{turn} run")
        for name, value in outputs.items():
            require(
                not any(np.may_share_memory(value, array) for array in inputs.values()), f"output '{name}' is an input's memory"
            )
            value += np.ones((), value.dtype)


@check("contract")
def two_networks_do_not_mix(context: CheckContext) -> None:
    """Networks of different operators and shapes, loaded at the same time and run alternately, give their own results."""
    samples = make_samples(context, "chain", "dynamic", "fork", "pair")
    loaded = {form: context.load(sample.network) for form, sample in samples.items()}
    for turn in range(3):
        for form, sample in samples.items():
            sample.require_run(loaded[form], context.seed + turn, what=f"network '{form}', turn {turn}")


@check("contract")
def networks_of_one_name_do_not_mix(context: CheckContext) -> None:
    """Networks with equal names and inputs but different operators are different networks: no cache key may be the name alone."""
    samples = list(islice(iterate_samples(context, "chain"), 4))
    if len(samples) < 2:
        raise Skip("the device takes one filling of 'chain' only")
    loaded = [context.load(sample.network) for sample in samples]
    for sample, network in zip(samples, loaded, strict=True):
        inputs = sample.draw(context.seed)
        operator = sample.network.nodes[0].op_type
        sample.require_right(network.infer(inputs), inputs, f"{operator} of {len(samples)} networks that are all named 'chain'")
