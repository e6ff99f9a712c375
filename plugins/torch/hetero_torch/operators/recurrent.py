"""RNN, LSTM and GRU as PyTorch has them: default activations, no peepholes, sequences of one length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hetero_core.network.graph import Node
from hetero_torch.table import FLOATS, Refuse, Types, operator

_DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}
# The rows of weights: ONNX's gates in the order of PyTorch's. LSTM: i o f c and i f c o; GRU: z r h and r z h.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}


def _refuse_variants(**neutral: Any) -> Refuse:
    def refuse(node: Node, types: Types) -> str | None:
        names = tuple(str(name).casefold() for name in node.attributes.get("activations", ()))
        defaults = _DEFAULTS[node.op_type]
        # One direction reads the first names.
        directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
        if names[: len(defaults) * directions] not in ((), defaults, defaults * 2):
            return f"activations {list(names)} of {node.operator} are not {list(defaults)}"
        for name in ("activation_alpha", "activation_beta", "clip"):
            if name in node.attributes:
                return f"attribute '{name}' of {node.operator} is not implemented"
        for name, value in neutral.items():
            if node.attributes.get(name, 0) != value:
                return f"attribute '{name}' of {node.operator} is {node.attributes.get(name, 0)}; implemented: {value}"
        if any(node.inputs[4:5]):
            return f"lengths of sequences of {node.operator} are not implemented"
        return f"peepholes of {node.operator} are not implemented" if any(node.inputs[7:8]) else None

    return refuse


def _run(
    op_type: str,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    initials: tuple[Tensor | None, ...],
    *,
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Returns Y and the final states in the operator's layout."""
    steps = x.transpose(0, 1) if layout else x
    steps = steps.flip(0) if direction == "reverse" else steps
    hidden, directions = r.shape[-1], w.shape[0]
    empty = torch.zeros((directions, steps.shape[1], hidden), dtype=x.dtype, device=x.device)
    states = tuple(
        empty if initial is None else (initial.transpose(0, 1) if layout else initial).contiguous() for initial in initials
    )
    weights: list[Tensor] = []
    for index in range(directions):
        parts = [w[index], r[index], *(() if b is None else b[index].chunk(2))]
        chunks = [part.chunk(len(_GATES[op_type])) for part in parts]
        weights += [torch.cat([rows[gate] for gate in _GATES[op_type]]) for rows in chunks]
    options = (b is not None, 1, 0.0, False, directions == 2, False)
    if op_type == "LSTM":
        sequence, *finals = torch.lstm(steps, list(states), weights, *options)
    else:
        function = torch.gru if op_type == "GRU" else torch.rnn_tanh
        sequence, *finals = function(steps, states[0], weights, *options)
    sequence = sequence.flip(0) if direction == "reverse" else sequence
    y = sequence.reshape(*sequence.shape[:2], directions, hidden)
    y = y.permute(1, 0, 2, 3) if layout else y.permute(0, 2, 1, 3)
    return y, *(final.transpose(0, 1) if layout else final for final in finals)


@operator("LSTM", 7, 14, 22, dtypes=FLOATS, widens=True, refuse=_refuse_variants(input_forget=0))
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Any = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activations: tuple[str, ...] = (),
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Returns Y, Y_h and Y_c of C = f C + i c, H = o h(C). Source: ONNX LSTM-22."""
    return _run("LSTM", x, w, r, b, (initial_h, initial_c), direction=direction, layout=layout)


@operator("GRU", 7, 14, 22, dtypes=FLOATS, widens=True, refuse=_refuse_variants(linear_before_reset=1))
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Any = None,
    initial_h: Tensor | None = None,
    *,
    activations: tuple[str, ...] = (),
    direction: str = "forward",
    layout: int = 0,
    linear_before_reset: int = 1,
) -> tuple[Tensor, ...]:
    """Returns Y and Y_h of H = (1 - z) h + z H, whose reset gate multiplies the product. Source: ONNX GRU-22."""
    return _run("GRU", x, w, r, b, (initial_h,), direction=direction, layout=layout)


@operator("RNN", 7, 14, 22, dtypes=FLOATS, widens=True, refuse=_refuse_variants())
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Any = None,
    initial_h: Tensor | None = None,
    *,
    activations: tuple[str, ...] = ("Tanh", "Tanh"),
    direction: str = "forward",
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """Returns Y and Y_h of H = tanh(X W^T + H R^T + Wb + Rb). Source: ONNX RNN-22."""
    return _run("RNN", x, w, r, b, (initial_h,), direction=direction, layout=layout)
