"""The executed graph: the steps that the device reports to run in place of the network's nodes."""

from __future__ import annotations

from hetero_core.conformance.check import CheckContext, check, require, require_equal, require_error
from hetero_core.conformance.samples import make_samples
from hetero_core.errors import ClosedError
from hetero_core.executed import DOMAIN


@check("contract")
def executed_graph_stands_for_the_network(context: CheckContext) -> None:
    """`get_runtime_model` is a network of steps: inputs and outputs are the network's, and each step names existing nodes."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair").items():
        loaded = context.load(sample.network)
        executed = loaded.get_runtime_model()
        what = f"the executed graph of '{form}'"
        require(executed.nodes, f"{what} has no steps")
        for side in ("inputs", "outputs"):
            names = [spec.name for spec in getattr(sample.network, side)]
            require_equal([spec.name for spec in getattr(executed, side)], names, f"{what}, its {side}")
        nodes = {node.name for node in sample.network.nodes}
        for step in executed.nodes:
            require_equal(step.domain, DOMAIN, f"{what}, the domain of step '{step.name}'")
            require(step.attributes.get("device"), f"{what}, step '{step.name}' names no device")
            strangers = sorted(set(step.attributes.get("original_names", ())) - nodes)
            require(not strangers, f"{what}, step '{step.name}' stands for {strangers}, which are no nodes of the network")
        told = {name for step in executed.nodes for name in step.attributes.get("original_names", ())}
        # A device that reports no steps has a single step, which names no node.
        require(not told or told == nodes, f"{what} has steps for {sorted(told)} and none for {sorted(nodes - told)}")


@check("contract")
def executed_graph_has_the_times_of_a_run(context: CheckContext) -> None:
    """With the profile of a run, measured steps carry the times of that profile."""
    for form, sample in make_samples(context, "chain").items():
        loaded = context.load(sample.network, {"PERF_COUNT": True})
        request = loaded.create_infer_request()
        request.infer(sample.draw(context.seed))
        profile = request.profile
        assert profile is not None, "the network measures its runs"
        steps = loaded.get_runtime_model(profile).nodes
        if any(step.attributes.get("original_names") for step in steps):
            measured = [step.name for step in steps if step.attributes.get("microseconds", 0) > 0]
            names = sorted({entry.node for entry in profile.entries})
            require(
                measured,
                f"no step of the executed graph of '{form}' has a time: its steps are {[step.name for step in steps]}, "
                f"and a run measures {names}",
            )
        loaded.close()
        require_error(ClosedError, loaded.get_runtime_model, "the executed graph of a network that is closed")
