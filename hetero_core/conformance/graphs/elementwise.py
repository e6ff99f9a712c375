"""Operators that work element by element: activations, arithmetic with all kinds of broadcasts, comparisons, choices."""

from __future__ import annotations

import numpy as np

from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable

_PLAIN = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "HardSwish", "Softplus", "Softsign", "Identity", "Sin", "Cos", "Mish")
_WITH_ALPHA = {"LeakyRelu": 0.1, "Elu": 0.7, "Celu": 0.8, "ThresholdedRelu": 0.5}


def grow_unary(b: GraphBuilder) -> None:
    """Adds a function of one value."""
    x = b.pick_float()
    kind = b.choose(
        "plain", "plain", "plain", "alpha", "hard_sigmoid", "clip", "exp", "sqrt", "log", "reciprocal", "rounding", "prelu"
    )
    match kind:
        case "plain":
            operator = b.choose(*_PLAIN)
            if operator in ("HardSwish", "Mish") and b.opset < 18:
                operator = "Relu"
            b.add(operator, [x], x.shape, bound=x.bound)
        case "alpha":
            operator = b.choose(*_WITH_ALPHA)
            operator = operator if b.dtype == "float32" else "LeakyRelu"
            b.add(operator, [x], x.shape, bound=x.bound, alpha=_WITH_ALPHA[operator])
        case "hard_sigmoid":
            b.add("HardSigmoid", [x], x.shape, bound=1, alpha=b.choose(0.2, 1 / 6), beta=0.5)
        case "clip":
            low, high = b.choose(("", 1.0), (0.0, 6.0), (-0.5, ""), (-1.0, 1.0))
            limits = [limit if isinstance(limit, str) else b.scalar(limit) for limit in (low, high)]
            b.add("Clip", [x, *limits], x.shape, bound=x.bound)
        case "exp":
            b.add("Exp", [b.add("Tanh", [x], x.shape, bound=1)], x.shape)
        case "sqrt":
            b.add("Sqrt", [b.add("Abs", [x], x.shape, bound=x.bound)], x.shape, bound=x.bound)
        case "log":
            shifted = b.add("Add", [b.add("Abs", [x], x.shape, bound=x.bound), b.scalar(1)], x.shape, bound=x.bound + 1)
            b.add("Log", [shifted], x.shape)
        case "reciprocal":
            square = b.add("Mul", [x, x], x.shape, bound=x.bound**2)
            b.add("Reciprocal", [b.add("Add", [square, b.scalar(1)], x.shape, bound=x.bound**2)], x.shape, bound=1)
        case "rounding":
            b.add(b.choose("Floor", "Ceil", "Round", "Sign"), [x], x.shape, bound=x.bound + 1)
        case "prelu":
            slope = b.weight(*_draw_broadcast(b, x), deviation=0.3)
            b.add("PRelu", [x, slope], x.shape, bound=x.bound)


def grow_written_out(b: GraphBuilder) -> None:
    """Adds an activation as exporters write it: several nodes that a device may fuse; some of their values at times have other readers."""
    x = b.pick_float(bound=50)
    match b.choose("swish", "swish", "gelu", "hard_swish", "gelu_tanh", "scale_shift"):
        case "swish":
            s = b.add("Sigmoid", [x], x.shape, bound=1)
            b.add("Mul", b.choose([x, s], [s, x]), x.shape, bound=x.bound)
        case "gelu":
            erf = b.add("Erf", [b.add("Div", [x, b.scalar(np.sqrt(2.0))], x.shape, bound=x.bound)], x.shape, bound=1)
            product = b.add("Mul", [x, b.add("Add", [erf, b.scalar(1)], x.shape, bound=2)], x.shape, bound=2 * x.bound)
            b.add("Mul", [product, b.scalar(0.5)], x.shape, bound=x.bound)
        case "hard_swish":
            shifted = b.add("Add", [x, b.scalar(3)], x.shape, bound=x.bound + 3)
            clipped = b.add("Clip", [shifted, b.scalar(0), b.scalar(6)], x.shape, bound=6)
            b.add("Div", [b.add("Mul", [x, clipped], x.shape, bound=6 * x.bound), b.scalar(6)], x.shape, bound=x.bound)
        case "gelu_tanh":
            square = b.add("Mul", [x, x], x.shape, bound=x.bound**2)
            inner = b.add("Mul", [square, b.scalar(0.044715)], x.shape, bound=x.bound**2)
            inner = b.add("Mul", [x, b.add("Add", [inner, b.scalar(1)], x.shape, bound=x.bound**2)], x.shape, bound=x.bound**3)
            t = b.add("Tanh", [b.add("Mul", [inner, b.scalar(0.79788456)], x.shape, bound=x.bound**3)], x.shape, bound=1)
            b.add("Mul", [b.add("Add", [t, b.scalar(1)], x.shape, bound=2), x], x.shape, bound=2 * x.bound)
        case "scale_shift":
            shape = _draw_broadcast(b, x)
            scaled = b.add("Mul", [x, b.weight(*shape)], x.shape, bound=x.bound)
            b.add("Add", [scaled, b.weight(*shape)], x.shape, bound=x.bound + 1)


def grow_binary(b: GraphBuilder) -> None:
    """Adds an operator on two or more values of the same shape, at times the same value twice."""
    x = b.pick_float()
    y = x if b.chance(0.15) else b.pick_like(x)
    match b.choose("Add", "Add", "Mul", "Sub", "Max", "Min", "Sum", "Mean", "Div", "Sum", "Max"):
        case "Mul":
            if x.bound * y.bound > 1e3:
                raise NotApplicable
            b.add("Mul", [x, y], x.shape, bound=x.bound * y.bound)
        case "Div":
            below = b.add("Add", [b.add("Abs", [y], x.shape, bound=y.bound), b.scalar(0.5)], x.shape, bound=y.bound)
            b.add("Div", [x, below], x.shape, bound=2 * x.bound)
        case "Sum" | "Mean" | "Max" | "Min" as operator:
            more = [b.choose(x, y, b.pick_like(x)) for _ in range(b.integer(0, 3))]
            read = [x, y, *more]
            b.add(operator, [read[int(index)] for index in b.random.permutation(len(read))], x.shape, bound=x.bound + y.bound)
        case operator:
            b.add(operator, [x, y], x.shape, bound=x.bound + y.bound)


def grow_broadcast(b: GraphBuilder) -> None:
    """Adds an operator on operands of different shapes; mostly, an operand is a constant."""
    x = b.pick_float(bound=100)
    partners = [value for value in b.values if value.dtype == x.dtype and value is not x and value.bound < 100 and _fits(value, x)]
    if partners and b.chance(0.6):
        other: DrawnValue | str = b.choose(*partners)
    else:
        other = b.weight(*_draw_broadcast(b, x))
    read = [x, other] if b.chance(0.7) else [other, x]
    operator = b.choose("Add", "Mul", "Sub", "Max", "Min")
    bound = x.bound * getattr(other, "bound", 3)
    b.add(operator, read, x.shape, bound=bound, dtype=x.dtype)


def grow_choice(b: GraphBuilder) -> None:
    """Adds a comparison and a Where that uses it as the condition."""
    x = b.pick_float()
    y = b.pick_like(x)
    operator = b.choose("Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    against: DrawnValue | str = b.scalar(0.1) if b.chance(0.5) else y
    condition = b.add(operator, [x, against], x.shape, dtype="bool", bound=1)
    if b.chance(0.3):
        condition = b.add("Not", [condition], x.shape, bound=1)
    others = [value for value in b.values if value.dtype == "bool" and value.shape == x.shape and value is not condition]
    if others and b.chance(0.7):
        condition = b.add(b.choose("And", "Or", "Xor"), [condition, b.choose(*others)], x.shape, bound=1)
    if b.chance(0.8):
        b.add("Where", [condition, x, b.scalar(-1.5) if b.chance(0.4) else y], x.shape, dtype=x.dtype, bound=max(x.bound, y.bound))


def _fits(smaller: DrawnValue, x: DrawnValue) -> bool:
    """Says whether the first value broadcasts to the shape of the second and has another shape itself."""
    if smaller.rank > x.rank or smaller.shape == x.shape:
        return False
    return all(size in (1, other) for size, other in zip(smaller.shape, x.shape[x.rank - smaller.rank :], strict=True))


def _draw_broadcast(b: GraphBuilder, x: DrawnValue) -> tuple[int, ...]:
    """Returns a closed shape that broadcasts to the value's: a number, a channel, the last axes, single axes."""
    sizes = [size if isinstance(size, int) else 1 for size in x.shape]
    match b.choose("number", "one", "channels", "tail", "mixed"):
        case "channels" if x.rank >= 3:
            return (sizes[1], *(1 for _ in sizes[2:]))
        case "tail" if x.rank >= 1:
            return tuple(sizes[b.integer(0, x.rank - 1) :])
        case "mixed":
            return tuple(size if b.chance(0.5) else 1 for size in sizes)
        case "one" if x.rank >= 1:
            return (1,)
    return ()


OPERATORS = ((4, grow_unary), (2, grow_written_out), (4, grow_binary), (2, grow_broadcast), (1, grow_choice))
"""Each operator with its weight."""
