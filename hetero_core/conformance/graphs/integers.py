"""Integer, boolean and shape arithmetic: counts, masks, indices, casts, and shapes computed from shapes."""

from __future__ import annotations

import numpy as np

from hetero_core.conformance.graphs.builder import DrawnValue, GraphBuilder, NotApplicable

_INTEGERS = ("int32", "int64")


def _pick(b: GraphBuilder, bound: float = 1e5) -> DrawnValue:
    return b.pick(lambda value: value.dtype in _INTEGERS and value.bound <= bound)


def grow_arithmetic(b: GraphBuilder) -> None:
    """Adds an operator on integers of one shape, or on integers and a number."""
    x = _pick(b)
    y = b.pick_like(x) if b.chance(0.6) else None
    number = b.integer(1, 5)
    other: DrawnValue | str = y if y is not None else b.constant(np.array(number, x.dtype))
    bound = x.bound * (y.bound if y is not None else number)
    operators = ["Add", "Sub", "Mul"] + ([] if y is not None else ["Div", "Mod"])
    if b.opset >= 12:
        operators += ["Max", "Min"]
    operator = b.choose(*operators)
    if operator == "Mul" and bound > 1e5:
        raise NotApplicable
    read = [x, other] if y is None or b.chance(0.7) else [other, x]
    b.add(operator, read, x.shape, dtype=x.dtype, bound=max(bound if operator == "Mul" else 0, x.bound + (y.bound if y else 5)))


def grow_unary(b: GraphBuilder) -> None:
    """Adds a function of integers."""
    x = _pick(b)
    match b.choose("neg", "abs", "sign", "cast", "clip", "cumsum", "reduce"):
        case "neg":
            b.add("Neg", [x], x.shape, bound=x.bound)
        case "abs":
            b.add("Abs", [x], x.shape, bound=x.bound)
        case "sign":
            b.add("Sign", [x], x.shape, bound=1)
        case "clip":
            b.add("Clip", [x, b.constant(np.array(-2, x.dtype)), b.constant(np.array(7, x.dtype))], x.shape, bound=7)
        case "cumsum" if x.rank:
            axis = b.integer(0, x.rank - 1)
            b.add("CumSum", [x, b.constant(np.array(axis, np.int64))], x.shape, bound=x.bound * b.size(x.shape[axis]))
        case "reduce" if x.rank:
            axis = b.integer(0, x.rank - 1)
            shape = [1 if index == axis else size for index, size in enumerate(x.shape)]
            if b.chance(0.5):
                b.add("ReduceSum", [x, b.numbers(axis)], shape, bound=x.bound * b.size(x.shape[axis]), keepdims=1)
            elif b.opset >= 18:
                b.add("ReduceMax", [x, b.numbers(axis)], shape, bound=x.bound, keepdims=1)
            else:
                b.add("ReduceMax", [x], shape, bound=x.bound, axes=[axis], keepdims=1)
        case _:
            grow_cast(b)


def grow_cast(b: GraphBuilder) -> None:
    """Adds a Cast, possibly to the value's own type."""
    x = b.pick(lambda value: value.bound < 1e4 and value.dtype in (*_INTEGERS, "bool", "float32", "float64", "float16"))
    to = b.choose("int32", "int64", "float32", "float32", "bool", "float64", "int32", "uint8", x.dtype)
    numbers = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}
    if to == "uint8":
        if x.dtype not in (*_INTEGERS, "bool"):
            raise NotApplicable
        if x.dtype != "bool":
            x = b.add("Abs", [x], x.shape, bound=x.bound)
        if x.bound > 255:
            raise NotApplicable
    b.add("Cast", [x], x.shape, dtype=to, bound=x.bound, to=numbers[to])


def grow_comparison(b: GraphBuilder) -> None:
    """Adds a comparison of integers and an operator that uses its result: logic, Where, a count."""
    x = _pick(b)
    y = b.pick_like(x)
    operator = b.choose("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    against: DrawnValue | str = b.constant(np.array(2, x.dtype)) if b.chance(0.4) else y
    mask = b.add(operator, [x, against], x.shape, dtype="bool", bound=1)
    if b.chance(0.3):
        mask = b.add("Not", [mask], x.shape, bound=1)
    others = [value for value in b.values if value.dtype == "bool" and value.shape == mask.shape]
    if b.chance(0.5):
        mask = b.add(b.choose("And", "Or", "Xor"), [mask, b.choose(*others)], mask.shape, bound=1)
    if b.chance(0.6):
        b.add("Where", [mask, x, y], x.shape, dtype=x.dtype, bound=max(x.bound, y.bound))


def grow_shape(b: GraphBuilder) -> None:
    """Adds arithmetic on a shape that ends in a Reshape, an Expand, a Range or a constant of that shape."""
    x = b.pick(lambda value: 2 <= value.rank <= 4 and value.bound < 1e4 and value.dtype in (*_INTEGERS, "float32"))
    shape = b.add("Shape", [x], (x.rank,), dtype="int64", bound=500)
    match b.choose("reshape", "constant", "expand", "range", "size"):
        case "reshape":
            first = b.add("Gather", [shape, b.numbers(0)], (1,), dtype="int64", bound=500, axis=0)
            target = b.add("Concat", [first, b.numbers(-1)], (2,), dtype="int64", bound=500, axis=0)
            rest = 1
            for size in x.shape[1:]:
                if not isinstance(size, int):
                    return
                rest *= size
            b.add("Reshape", [x, target], (x.shape[0], rest), bound=x.bound)
        case "constant":
            if b.chance(0.5):
                import onnx  # heavy

                fill = onnx.numpy_helper.from_array(np.array([b.integer(0, 3)], b.choose("int64", "float32")))
                dtype = "int64" if fill.data_type == 7 else "float32"
                filled = b.add("ConstantOfShape", [shape], x.shape, dtype=dtype, value=fill)
                if dtype == x.dtype:
                    b.add("Add", [x, filled], x.shape, bound=x.bound + 3)
        case "expand":
            dtype = x.dtype
            b.add("Expand", [b.constant(np.array(b.integer(-3, 3), dtype)), shape], x.shape, dtype=dtype)
        case "range":
            last = b.add("Gather", [shape, b.constant(np.array(x.rank - 1, np.int64))], (), dtype="int64", bound=500, axis=0)
            zero, step = b.constant(np.array(0, np.int64)), b.constant(np.array(1, np.int64))
            line = b.add("Range", [zero, last, step], (x.shape[-1],), dtype="int64", bound=b.size(x.shape[-1]) + 1)
            if x.dtype == "int64":
                b.add("Add", [x, line], x.shape, bound=x.bound + line.bound)
        case "size":
            b.add("Size", [x], (), dtype="int64", bound=1e4)


def grow_index(b: GraphBuilder) -> None:
    """Adds an operator on indices or masks: Gather, OneHot, Tile, Concat."""
    x = _pick(b, 1e4)
    match b.choose("gather", "onehot", "concat", "tile"):
        case "gather" if x.rank and isinstance(x.shape[0], int):
            size = x.shape[0]
            indices = b.random.integers(-size, size, (b.integer(1, 4),)).astype(np.int64)
            b.add("Gather", [x, b.constant(indices)], (len(indices), *x.shape[1:]), bound=x.bound, axis=0)
        case "onehot" if 1 <= x.rank <= 2:
            depth = b.choose(3, 8, 17)
            values = b.constant(np.array([0, 1], np.float32))
            positive = b.add("Abs", [x], x.shape, bound=x.bound)
            index = b.add("Mod", [positive, b.constant(np.array(depth, x.dtype))], x.shape, bound=depth)
            read: list[DrawnValue | str] = [index, b.constant(np.array(depth, np.int64)), values]
            b.add("OneHot", read, (*x.shape, depth), dtype="float32", bound=1, axis=-1)
        case "concat" if x.rank and isinstance(x.shape[0], int):
            y = b.pick_like(x)
            b.add("Concat", [x, y], (2 * x.shape[0], *x.shape[1:]), bound=max(x.bound, y.bound), axis=0)
        case "tile" if x.rank and x.is_closed:
            repeats = [b.integer(1, 3) for _ in x.shape]
            b.tile(x, repeats)
        case _:
            raise NotApplicable


OPERATORS = (
    (4, grow_arithmetic), (2, grow_unary), (2, grow_cast), (2, grow_comparison), (1.5, grow_shape), (1.5, grow_index),
)  # fmt: skip
"""Each operator with its weight."""
