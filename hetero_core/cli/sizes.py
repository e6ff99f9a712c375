"""The sizes that a caller chooses for open dimensions: by input, or by the name of a size, which then holds for every input.

--shape x=2,3 is the shape of input x, and binds the named sizes in it; --shape height=320 binds a named size. An array that is
given binds the names in its input's shape, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_core.cli.answer import UsageError
from hetero_core.errors import enumerate_choices, suggest
from hetero_core.network.types import Dimension, OptionalType, TensorType, ValueSpec

_CHANNELS = (1, 3, 4)
_IMAGE_SIZE = 224


@dataclass(frozen=True, slots=True)
class Sizes:
    """Chosen sizes: whole shapes by input, and sizes by name."""

    shapes: Mapping[str, tuple[int, ...]]
    named: Mapping[str, int]

    def find_shape(self, spec: ValueSpec) -> tuple[Dimension, ...] | None:
        """Returns the shape of an input with the chosen sizes in it; None where not even the number of axes is known."""
        if spec.name in self.shapes:
            return self.shapes[spec.name]
        shape = find_tensor_shape(spec)
        return None if shape is None else tuple(self.named.get(size, size) if isinstance(size, str) else size for size in shape)

    def bind(self, spec: ValueSpec, shape: Sequence[int]) -> Sizes:
        """Returns these sizes and those that an array of this shape gives to names that have none yet."""
        declared = find_tensor_shape(spec)
        if declared is None or len(declared) != len(shape):
            return self
        bindings = {name: size for name, size in zip(declared, shape, strict=True) if isinstance(name, str)}
        return Sizes(self.shapes, {**bindings, **self.named})

    def of_network(self) -> dict[str, tuple[int, ...] | int]:
        """Returns the sizes as `with_shapes` takes them."""
        return {**self.named, **self.shapes}


def find_tensor_type(spec: ValueSpec) -> TensorType | None:
    """Returns the type of a tensor or of an optional tensor; None for sequences and maps."""
    value_type = spec.type.element if isinstance(spec.type, OptionalType) else spec.type
    return value_type if isinstance(value_type, TensorType) else None


def find_tensor_shape(spec: ValueSpec) -> tuple[Dimension, ...] | None:
    """Returns the declared shape of a tensor or an optional tensor; None where there is none."""
    tensor = find_tensor_type(spec)
    return None if tensor is None else tensor.shape


def choose_sizes(texts: Mapping[str, tuple[int, ...]], specs: Sequence[ValueSpec]) -> Sizes:
    """Returns what the --shape options choose.

    Raises: UsageError for a name that is neither an input nor a size, another number of axes, and two sizes for one name.
    """
    spec_of_name = {spec.name: spec for spec in specs}
    names = list(dict.fromkeys(size for spec in specs for size in find_tensor_shape(spec) or () if isinstance(size, str)))
    shapes: dict[str, tuple[int, ...]] = {}
    named: dict[str, tuple[int, str]] = {}
    for name, shape in texts.items():
        text = f"--shape {name}={','.join(map(str, shape))}"
        if name in spec_of_name:
            shapes[name] = shape
            pairs = _pair_names(spec_of_name[name], shape, text)
        elif name in names:
            if len(shape) != 1:
                raise UsageError(f"{text}: '{name}' is one size; expected one number, as in --shape {name}=1")
            pairs = [(name, shape[0])]
        else:
            _refuse(text, name, specs, names)
        for size_name, size in pairs:
            earlier, earlier_text = named.setdefault(size_name, (size, text))
            if earlier != size:
                raise UsageError(f"{text}: makes size '{size_name}' {size}, and {earlier_text} makes it {earlier}; they must agree")
    return Sizes(shapes, {name: size for name, (size, _) in named.items()})


def _pair_names(spec: ValueSpec, shape: tuple[int, ...], text: str) -> list[tuple[str, int]]:
    declared = find_tensor_shape(spec)
    if declared is None:
        return []
    if len(declared) != len(shape):
        raise UsageError(f"{text}: input {spec} has {len(declared)} axes, and {len(shape)} sizes were given")
    return [(name, size) for name, size in zip(declared, shape, strict=True) if isinstance(name, str)]


def _refuse(text: str, name: str, specs: Sequence[ValueSpec], names: Sequence[str]) -> None:
    known = [*(spec.name for spec in specs), *names]
    inputs = "; ".join(map(str, specs)) or "none"
    raise UsageError(
        f"{text}: there is no such input or named size{suggest(name, known) or ';'} the inputs are {inputs}; "
        f"the named sizes are {enumerate_choices(names)}"
    )


def is_open(shape: Sequence[Dimension] | None) -> bool:
    """Says whether a size is not chosen yet."""
    return shape is None or not all(isinstance(size, int) for size in shape)


def advise_on_sizes(specs: Iterable[ValueSpec], sizes: Sizes) -> str:
    """Returns --shape options that would choose every size which is still open: by name where sizes have names."""
    options: dict[str, None] = {}
    for spec in specs:
        shape = sizes.find_shape(spec)
        if shape is None:
            options[f"--shape {spec.name}=1,3,224,224"] = None
        elif all(isinstance(size, int | str) for size in shape):
            options.update(
                {f"--shape {name}={_guess(shape, axis)}": None for axis, name in enumerate(shape) if isinstance(name, str)}
            )
        else:
            options[f"--shape {spec.name}={','.join(str(_guess(shape, axis)) for axis in range(len(shape)))}"] = None
    return " ".join(options)


def _guess(shape: Sequence[Dimension], axis: int) -> int:
    """Returns a size for an axis: its own, the height and width of a usual image, else 1."""
    size = shape[axis]
    if isinstance(size, int):
        return size
    is_first = len(shape) == 4 and shape[1] in _CHANNELS and axis in (2, 3)
    is_last = len(shape) == 4 and shape[3] in _CHANNELS and axis in (1, 2)
    return _IMAGE_SIZE if is_first or is_last else 1
