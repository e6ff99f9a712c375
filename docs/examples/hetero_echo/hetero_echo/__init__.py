"""ECHO, the smallest device: it runs Identity and refuses everything else."""

from time import perf_counter

from hetero_core import Executable, QueryResult, hookimpl
from hetero_core.devices.query import query_by_transform, require_all_supported


@hookimpl
def create_device():
    return EchoDevice()


class EchoDevice:
    @hookimpl
    def query_network(self, device, network) -> QueryResult:
        return query_by_transform(device, network, transform=lambda same: same, refuse=refuse_node)

    @hookimpl
    def load_network(self, device, network) -> Executable:
        require_all_supported(device, network, self.query_network(device, network))
        return EchoExecutable(network)


def refuse_node(node, network):
    return None if node.op_type == "Identity" and not node.domain else f"ECHO runs Identity only, not {node.operator}"


class EchoExecutable(Executable):
    def __init__(self, network):
        self.inputs, self.outputs, self.nodes = network.inputs, network.outputs, network.nodes
        self.constants = {name: constant.array for name, constant in network.initializers.items()}

    def run(self, inputs, context):
        values = {**self.constants, **{spec.name: value for spec, value in zip(self.inputs, inputs, strict=True)}}
        for node in self.nodes:
            began = perf_counter()
            values[node.outputs[0]] = values[node.inputs[0]]
            if context.profile is not None:
                context.profile.add(node, perf_counter() - began)
        return tuple(values[spec.name] for spec in self.outputs)
