"""The device: it queries the table of kernels, loads a program of them, and runs it on JAX's arrays."""

import jax
import jax.numpy as jnp
import numpy as np

from hetero_core import Executable, Payload, QueryResult, hookimpl
from hetero_core.devices.processors import describe_host_memory
from hetero_core.devices.query import query_by_transform, require_all_supported
from hetero_core.kernels.program import compile_program
from hetero_core.kernels.registry import NOT_STRING, find_refusals
from hetero_core.network.writer import pack_network, unpack_network

jax.config.update("jax_enable_x64", True)  # ONNX has float64 and int64
PAYLOAD_VERSION = 1


class JaxDevice:
    def __init__(self):
        self.name = f"JAX {jax.__version__} on {jax.devices()[0]}"  # starts XLA

    @hookimpl
    def metrics(self):
        capabilities = ("FP32", "FP64", "FP16", "BF16", "INT8")
        facts = {"FULL_DEVICE_NAME": self.name, "OPTIMIZATION_CAPABILITIES": capabilities, **describe_host_memory()}
        return {**facts, "VALUE_DEVIATIONS": ("DENORMALS",)}  # XLA flushes them on processors, and no flag of it changes that

    @hookimpl
    def query_network(self, device, network) -> QueryResult:
        reasons = find_refusals(network, dtypes=NOT_STRING)
        return query_by_transform(device, network, lambda same: same, lambda node, _: reasons.get(node.name))

    @hookimpl
    def load_network(self, device, network) -> Executable:
        require_all_supported(device, network, self.query_network(device, network))
        return JaxExecutable(network)

    @hookimpl
    def export_network(self, executable):
        return Payload(pack_network(executable.network), PAYLOAD_VERSION)

    @hookimpl
    def import_network(self, device, payload):
        payload.require_version(PAYLOAD_VERSION)
        return self.load_network(device, unpack_network(payload.sections))


class JaxExecutable(Executable):
    def __init__(self, network):
        self.network, self.inputs, self.outputs = network, network.inputs, network.outputs
        self.program = compile_program(network, xp=jnp, to_host=np.asarray, dtypes=NOT_STRING)

    def run(self, inputs, context):
        results = self.program.run(_map(inputs, jnp.asarray), profile=context.profile, limits=context.limits)
        return _map(results, np.array)


def _map(values, convert):
    return tuple(x if x is None else [*_map(x, convert)] if isinstance(x, list) else convert(x) for x in values)
