"""The language that kernels are written in: Python functions that emit LLVM instructions, with operators for numbers and vectors.

Addresses and strides are in bytes. A vector has as many float32 elements as a register of the processor (`Code.width`). Variables are
memory of the stack that LLVM turns into registers. Nothing here knows operators of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hetero_cpu.machine import llvm as ir
from hetero_cpu.machine.terms import Floats, Integers, Mask, Number, Term

FLOAT_BYTES, HALF_BYTES = 4, 2
ELEMENTS = {
    "bool": ir.I8, "int8": ir.I8, "uint8": ir.I8, "int32": ir.I32, "int64": ir.I64, "float32": ir.FLOAT, "float64": ir.DOUBLE,
}  # fmt: skip
"""Element types of which a kernel may hold a single element, as they lie in memory."""
HALVES = {"float16": ir.HALF, "bfloat16": ir.I16}
"""Element types that are float32 in registers."""

_Scalar = TypeVar("_Scalar", bound=Term)


@dataclass(slots=True, eq=False)
class Variable:
    """A place for a value that changes, of one kind."""

    code: Code
    kind: type[Term]
    place: Any
    type: Any

    def get(self) -> Any:
        """Returns the value as it is here."""
        return self.kind(self.code, self.code.builder.load(self.place, self.type))

    def set(self, term: Term) -> None:
        """Changes the value."""
        self.code.builder.store(term.value, self.place)


def begin_kernel(name: str, width: int, names: Sequence[str]) -> tuple[Code, dict[str, Number], Number, Number]:
    """Returns the function of a kernel, the numbers of its row by their names, its chunk, and the worker that calls it."""
    code = Code(name, 3, width)
    row, chunk, worker = code.parameters
    return code, code.load_row(row, names), chunk, worker


class Code:
    """A function of numbers under construction, in a module of its own or in the given module."""

    def __init__(self, name: str, parameters: int, width: int, module: Any = None) -> None:
        self.width = width
        self.module = ir.Module(name) if module is None else module
        self.function = ir.Function(self.module, name, ir.VOID, [ir.I64] * parameters, is_internal=module is not None)
        self._entry = ir.Builder(self.function, self.function.append_block())
        self._first = self.function.append_block()
        self.builder = ir.Builder(self.function, self._first)
        self.parameters = tuple(Number(self, argument) for argument in self.function.args)
        self._inners: dict[str, Code] = {}

    def finish(self) -> Code:
        """Ends the function, and returns it."""
        self.builder.end("ret void")
        self._entry.branch(self._first)
        return self

    def take_text(self) -> str:
        """Returns the module as LLVM reads it."""
        return str(self.module)

    def find_inner(self, name: str, parameters: int, emit: Callable[[Code], None]) -> Code:
        """Returns a function that only this module can call; `emit` emits and finishes it when it is first asked for."""
        if name not in self._inners:
            self._inners[name] = Code(name, parameters, self.width, self.module)
            emit(self._inners[name])
        return self._inners[name]

    def call(self, function: Code, *arguments: Number | int) -> None:
        """Calls a function of the same module."""
        self._invoke(function.function.name, ir.VOID, *(self.number(argument).value for argument in arguments))

    def call_address(self, address: Number, *arguments: Number | int) -> None:
        """Calls the function at an address with numbers; it returns nothing."""
        pointer = self.builder.convert("inttoptr", address.value, ir.POINTER)
        self.builder.call(pointer.text, ir.VOID, [self.number(argument).value for argument in arguments])

    def call_outside(self, name: str, *arguments: Number | int) -> Number:
        """Calls a function of the C library, int64 to int64; its name has to be imported when the module is linked."""
        return Number(self, self._invoke(name, ir.I64, *(self.number(argument).value for argument in arguments)))

    def _invoke(self, name: str, result: ir.Type, *operands: ir.Value) -> ir.Value:
        """Calls a function by its name, which is declared for these operands if it is not of this module."""
        self.module.declare(name, result, [operand.type for operand in operands])
        return self.builder.call(f'@"{name}"', result, operands)

    # Values.

    def number(self, value: Number | int) -> Number:
        """Returns a number of the function."""
        return value if isinstance(value, Number) else Number(self, ir.write_integer(ir.I64, int(value)))

    def constant(self, value: float, width: int | None = None) -> Floats:
        """Returns a constant vector, or a scalar for width 1; the value is rounded to float32."""
        lanes = self.width if width is None else width
        return Floats(self, ir.write_float(ir.widen_type(ir.FLOAT, lanes), float(np.float32(value))))

    def spread(self, scalar: _Scalar, lanes: int | None = None) -> _Scalar:
        """Returns a vector with the same element in each lane; the element itself for a single lane."""
        lanes = self.width if lanes is None else lanes
        return scalar if lanes == 1 else type(scalar)(self, self.builder.spread(scalar.value, lanes))

    def hide(self, value: Number) -> Number:
        """Returns the same number in a register of its own: LLVM does not know how it was made, and so does not make it again."""
        return Number(self, self.builder.hide(value.value))

    def float_of(self, bits: Number) -> Floats:
        """Returns the float32 with the bits of the lower half of a number."""
        return bits.convert("trunc", ir.I32, Integers).convert("bitcast", ir.FLOAT, Floats)

    def variable(self, first: Term) -> Variable:
        """Returns a variable with its first value."""
        variable = Variable(self, type(first), self._entry.reserve(first.value.type), first.value.type)
        variable.set(first)
        return variable

    # Memory.

    def reserve(self, count: int) -> Number:
        """Returns the address of `count` int64 on the stack, there until the function returns."""
        return Number(self, self._entry.convert("ptrtoint", self._entry.reserve(ir.I64, count), ir.I64))

    def load_number(self, address: Number, offset: int = 0) -> Number:
        """Returns the int64 at an address."""
        return Number(self, self._load(address, offset, ir.I64))

    def load_short(self, address: Number, offset: int = 0) -> Number:
        """Returns the int32 at an address."""
        return self.load_integers(address, offset, 1).convert("sext", ir.I64, Number)

    def load_double(self, address: Number) -> Floats:
        """Returns the float64 at an address, a scalar that is computed with other float64."""
        return Floats(self, self._load(address, 0, ir.DOUBLE))

    def widen(self, value: Floats) -> Floats:
        """Returns float32 as float64."""
        return value.convert("fpext", ir.DOUBLE, Floats)

    def narrow(self, value: Floats) -> Floats:
        """Returns float64 as float32, rounded to nearest, ties to even."""
        return value.convert("fptrunc", ir.FLOAT, Floats)

    def load_element(self, address: Number, dtype: str, lanes: int = 1) -> Number | Floats:
        """Returns an element, or a vector, of a type of `ELEMENTS` or `HALVES`: a whole number or truth value as int64."""
        kind = (ELEMENTS | HALVES)[dtype]
        value = Floats(self, self._load(address, 0, ir.widen_type(kind, lanes)))
        if dtype == "float16":
            return value.convert("fpext", ir.FLOAT, Floats)
        if dtype == "bfloat16":
            return value.convert("zext", ir.I32, Integers).compute("shl", 16).convert("bitcast", ir.FLOAT, Floats)
        if "float" in dtype:
            return value
        return (
            Number(self, value.value) if kind is ir.I64 else value.convert("zext" if dtype == "uint8" else "sext", ir.I64, Number)
        )

    def store_element(self, address: Number, term: Number | Floats, dtype: str) -> None:
        """Writes an element as `load_element` returns it; a whole number loses its upper bits."""
        if isinstance(term, Floats) and dtype in HALVES:
            self.store_half(address, term, dtype)
            return
        value, kind = term.value, ELEMENTS[dtype]
        if value.type.element is not kind:
            value = self.builder.convert("trunc", value, ir.widen_type(kind, value.type.count))
        self._store(address, 0, value)

    def number_of(self, condition: Mask) -> Number:
        """Returns 1 if a condition holds, else 0; of vectors a vector."""
        return condition.convert("zext", ir.I64, Number)

    def convert_element(self, term: Number | Floats, dtype: str) -> Number | Floats:
        """Returns an element as another type; a float that the type does not hold becomes the least whole number, as in NumPy."""
        if dtype == "bool":
            if isinstance(term, Number):
                return 1 - self.number_of(term.equals(0))
            return self.number_of(Mask(self, self.builder.compare("fcmp une", term.value, term.constant(0.0).value)))
        target = ELEMENTS[dtype]
        if "float" in dtype:
            if term.value.type.element is target:
                return term
            name = "sitofp" if isinstance(term, Number) else "fpext" if target is ir.DOUBLE else "fptrunc"
            return term.convert(name, target, Floats)
        if not isinstance(term, Floats):
            return term
        number, least = term.convert("fptosi", ir.I64, Number), -(1 << 31)
        fits = (number >= least) & (number < -least)
        return number if dtype == "int64" else fits.choose(number, number * 0 + least)

    def load_row(self, row: Number, names: Sequence[str]) -> dict[str, Number]:
        """Returns the numbers of a row by their names, in the order in which they stand there."""
        return {name: self.load_number(row, 8 * position) for position, name in enumerate(names)}

    def load_scalar(self, address: Number, offset: int = 0) -> Floats:
        """Returns the float32 at an address."""
        return Floats(self, self._load(address, offset, ir.FLOAT))

    def load(self, address: Number, offset: int = 0, *, mask: Mask | None = None) -> Floats:
        """Returns the vector at an address; masked elements are zeros and are not read."""
        return Floats(self, self._load(address, offset, ir.widen_type(ir.FLOAT, self.width), mask))

    def _load(self, address: Number, offset: int, kind: ir.Type, mask: Mask | None = None) -> ir.Value:
        pointer = self._point(address, offset)
        if mask is None:
            return self.builder.load(pointer, kind, kind.nbytes)
        zeros = ir.write_float(kind, 0.0) if kind.element is ir.FLOAT else ir.write_integer(kind, 0)
        align = ir.write_integer(ir.I32, kind.nbytes)
        return self._invoke(f"llvm.masked.load.{kind.short}.p0", kind, pointer, align, mask.value, zeros)

    def store(self, address: Number, value: Term | int, offset: int = 0, *, mask: Mask | None = None) -> None:
        """Writes a vector or a scalar, a Python number as int64; masked elements are not written."""
        self._store(address, offset, value.value if isinstance(value, Term) else self.number(value).value, mask)

    def _store(self, address: Number, offset: int, value: ir.Value, mask: Mask | None = None) -> None:
        pointer, kind = self._point(address, offset), value.type
        if mask is None:
            self.builder.store(value, pointer, kind.nbytes)
        else:
            align = ir.write_integer(ir.I32, kind.nbytes)
            self._invoke(f"llvm.masked.store.{kind.short}.p0", ir.VOID, value, pointer, align, mask.value)

    def load_integers(self, address: Number, offset: int = 0, lanes: int | None = None) -> Integers:
        """Returns the vector of int32 at an address, or of as many `lanes`; a lane may be four bytes."""
        return Integers(self, self._load(address, offset, ir.widen_type(ir.I32, self.width if lanes is None else lanes)))

    def whole(self, value: Floats) -> Integers:
        """Returns whole float32 as int32."""
        return value.convert("fptosi", ir.I32, Integers)

    def zero_integers(self) -> Integers:
        """Returns a vector of zeros."""
        return Integers(self, ir.write_integer(ir.widen_type(ir.I32, self.width), 0))

    def store_whole(self, address: Number, value: Floats, form: str, *, mask: Mask | None = None) -> None:
        """Writes whole float32 as "bytes" (0 to 255) or "words" of 16 bits, or the "lowest" byte of each; masked ones are not written."""
        whole = value.convert("bitcast" if form == "lowest" else "fptosi", ir.I32, Integers)
        self.store(address, whole.convert("trunc", ir.I16 if form == "words" else ir.I8, Integers), mask=mask)

    def load_bytes(self, address: Number, width: int, *, mask: Mask | None = None) -> Floats:
        """Returns `width` bytes of 0 to 255 as float32; masked elements are zeros and are not read."""
        octets = Integers(self, self._load(address, 0, ir.widen_type(ir.I8, width), mask))
        return octets.convert("zext", ir.I32, Integers).to_floats()

    def read_bits(self, words: Floats, first: int, count: int, *, is_scaled: bool = False) -> Floats:
        """Returns the whole numbers in bits `first` to `first` + count - 1 of words of 32 bits, which are given as float32.

        If it `is_scaled`, a number is 2**first times as large, which takes an instruction less; not if its bits are the highest.
        """
        bits = words.convert("bitcast", ir.I32, Integers)
        is_highest, mask = first + count == 32, (1 << count) - 1
        if is_scaled and not is_highest:
            mask <<= first
        elif first:
            bits = bits.compute("lshr", first)
        return (bits if is_highest else bits.compute("and", mask)).to_floats()

    def store_half(self, address: Number, value: Floats, half: str, *, mask: Mask | None = None) -> None:
        """Writes float32 as numbers of half precision, rounded to nearest, ties to even; a NaN stays one. Masked ones are not written."""
        if half == "float16":
            self.store(address, value.convert("fptrunc", ir.HALF, Floats), mask=mask)
            return
        # The processor's own instruction takes subnormal numbers for zeros.
        bits = value.convert("bitcast", ir.I32, Integers)
        upper = bits.compute("lshr", 16)
        nearest = (bits + (upper.compute("and", 1) + 0x7FFF)).compute("lshr", 16)
        chosen = value.is_nan().choose(upper.compute("or", 0x40), nearest)
        self.store(address, chosen.convert("trunc", ir.I16, Integers), mask=mask)

    def mask_first(self, count: Number | int) -> Mask:
        """Returns a mask that holds for the first `count` elements, or for all, if there are fewer."""
        limit = self.builder.spread(self.number(count).value, self.width)
        return Mask(self, self.builder.compare("icmp slt", ir.write_integers(ir.I64, range(self.width)), limit))

    def mask_between(self, first: Number | int, end: Number | int) -> Mask:
        """Returns a mask that holds for the elements `first` to `end` - 1."""
        before = self.mask_first(first).value
        beyond = self.builder.compute("xor", before, ir.write_integer(before.type, 1))
        return Mask(self, self.builder.compute("and", self.mask_first(end).value, beyond))

    # Arithmetic beyond the operators.

    def multiply_add(self, left: Floats, right: Floats, added: Floats) -> Floats:
        """Returns left * right + added, rounded once."""
        kind = left.value.type
        return Floats(self, self._invoke(f"llvm.fma.{kind.short}", kind, left.value, right.value, added.value))

    def call_intrinsic(self, name: str, value: Floats) -> Floats:
        """Returns an intrinsic of LLVM of one operand, as "sqrt", "fabs", "rint"."""
        kind = value.value.type
        return Floats(self, self._invoke(f"llvm.{name}.{kind.short}", kind, value.value))

    def _raise_two(self, exponent: Floats) -> Floats:
        """Returns 2**n for whole n of -126 to 127; of float64, -1022 to 1023."""
        is_double = exponent.value.type.element is ir.DOUBLE
        bits, bias, shift = (ir.I64, 1023, 52) if is_double else (ir.I32, 127, 23)
        biased = exponent.convert("fptosi", bits, Integers) + bias
        return biased.compute("shl", shift).convert("bitcast", exponent.value.type.element, Floats)

    def scale_by_power(self, value: Floats, exponent: Floats) -> Floats:
        """Returns value * 2**n for whole n of -252 to 254 (float64: -2044 to 2046), rounded once if the result is subnormal."""
        if value.width == 16:
            operands = value.value, exponent.value, value.value
            all_of_them, as_set = ir.write_integer(ir.I16, -1), ir.write_integer(ir.I32, 4)
            name = "llvm.x86.avx512.mask.scalef.ps.512"
            return Floats(self, self._invoke(name, value.value.type, *operands, all_of_them, as_set))
        half = self.call_intrinsic("floor", exponent * 0.5)
        return value * self._raise_two(half) * self._raise_two(exponent - half)

    def split_exponent(self, value: Floats) -> tuple[Floats, Floats]:
        """Returns m of sqrt(1/2) to sqrt(2) and whole n with value = m * 2**n, for positive values that are not subnormal."""
        whole = value.convert("bitcast", ir.I32, Integers)
        exponent = (whole - 0x3F3504F3).compute("ashr", 23)  # the bits of sqrt(1/2)
        mantissa = whole - exponent.compute("shl", 23)
        return mantissa.convert("bitcast", ir.FLOAT, Floats), exponent.to_floats()

    # The processor's own products of four bytes or two bfloat16: of vectors, and of whole matrices with AMX.

    def multiply_bytes(self, left: Integers, right: Integers, total: Integers) -> Integers:
        """Returns total + the sum of four products of unsigned and signed bytes in each lane, exact to 32 bits. Only with VNNI."""
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.width}"
        return Integers(self, self._invoke(name, total.value.type, total.value, left.value, right.value))

    def multiply_byte_pairs(self, left: Integers, right: Integers, total: Integers) -> Integers:
        """Returns what `multiply_bytes` returns, on any processor, if the sums of two adjacent products fit into 16 bits."""
        words, octets = ir.widen_type(ir.I16, 2 * self.width), ir.widen_type(ir.I8, 4 * self.width)
        name = "avx512.pmaddubs.w.512" if self.width == 16 else "avx2.pmadd.ub.sw"
        sides = [self.builder.convert("bitcast", side.value, octets) for side in (left, right)]
        products = self._invoke(f"llvm.x86.{name}", words, *sides)
        return self._add_word_products([products, ir.write_integer(words, 1)], total)

    def multiply_words(self, left: Integers, right: Integers, total: Integers) -> Integers:
        """Returns total + the sum of two products of signed numbers of 16 bits in each lane, exact to 32 bits, on any processor."""
        words = ir.widen_type(ir.I16, 2 * self.width)
        return self._add_word_products([self.builder.convert("bitcast", side.value, words) for side in (left, right)], total)

    def _add_word_products(self, sides: list[Any], total: Integers) -> Integers:
        name = "avx512.pmaddw.d.512" if self.width == 16 else "avx2.pmadd.wd"
        sums = self._invoke(f"llvm.x86.{name}", total.value.type, *sides)
        return Integers(self, self.builder.hide(self.builder.compute("add", total.value, sums)))

    def multiply_halves(self, left: Floats, right: Floats, total: Floats) -> Floats:
        """Returns total + the sum of the products of two bfloat16 in each lane, which hold the bits of float32. Only with AVX512_BF16."""
        sides = [self.builder.convert("bitcast", side.value, ir.widen_type(ir.BFLOAT, 2 * self.width)) for side in (left, right)]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.width}"
        return Floats(self, self._invoke(name, total.value.type, total.value, *sides))

    def call_tiles(self, name: str, *tiles: int, address: Number | None = None, stride: Number | int | None = None) -> None:
        """Emits an instruction of AMX on tiles: of rows at an address, `stride` bytes apart, of the 64 bytes of shapes there, or of sums.

        "tdpbusd" adds to int32 products of unsigned bytes, row by row, and signed bytes, four rows side by side; "tdpbf16ps" to float32
        those of bfloat16, two rows of the second side by side. Source: Intel SDM.
        """
        operands = [ir.write_integer(ir.I8, tile) for tile in tiles]
        if address is not None:
            operands.append(self._point(address, 0))
        if stride is not None:
            operands.append(self.number(stride).value)
        self._invoke(f"llvm.x86.{name}", ir.VOID, *operands)

    # Control.

    @contextmanager
    def loop(self, begin: Number | int, end: Number | int, step: Number | int = 1) -> Iterator[Number]:
        """Repeats the body for begin, begin + step, ... below end."""
        counter = self.variable(self.number(begin))
        head, body, after = (self.function.append_block() for _ in range(3))
        self.builder.branch(head)
        self.builder.go_to(head)
        current = counter.get()
        self.builder.branch_if((current < end).value, body, after)
        self.builder.go_to(body)
        yield current
        counter.set(current + step)
        self.builder.branch(head)
        self.builder.go_to(after)

    def visit_chunk(self, chunk: Number, size: Number, count: Number) -> AbstractContextManager[Number]:
        """Repeats the body for the units of a chunk of `size` units, of which there are `count` in all."""
        begin = chunk * size
        return self.loop(begin, (begin + size).at_most(count))

    def visit_blocks(
        self, first: Number, end: Number, count: Number, emit: Callable[[Number, bool], None], *, has_other_last: bool
    ) -> None:
        """Emits `emit(block, is_last)` for blocks `first` to `end` - 1 of `count`, and again for the last of all if that is different."""
        full = end.at_most(count - 1) if has_other_last else end
        with self.loop(first, full) as block:
            emit(block, False)
        if has_other_last:
            with self.loop(full.at_least(first), end) as block:
                emit(block, True)

    def visit_vectors(self, length: Number, emit: Callable[[Number, Mask | None], None]) -> None:
        """Emits `emit(first element, mask)` for each vector of a row; a vector that is not full has a mask."""
        full = length - length % self.width
        with self.loop(0, full, self.width) as element:
            emit(element, None)
        with self.when(full < length):
            emit(full, self.mask_first(length - full))

    @contextmanager
    def repeat(self) -> Iterator[Any]:
        """Repeats the body until the function that is yielded is told a condition to leave for."""
        body, after = self.function.append_block(), self.function.append_block()
        self.builder.branch(body)
        self.builder.go_to(body)

        def leave_if(condition: Mask) -> None:
            following = self.function.append_block()
            self.builder.branch_if(condition.value, after, following)
            self.builder.go_to(following)

        yield leave_if
        self.builder.branch(body)
        self.builder.go_to(after)

    @contextmanager
    def when(self, condition: Mask) -> Iterator[None]:
        """Runs the body if the condition holds."""
        yes, after = self.function.append_block(), self.function.append_block()
        self.builder.branch_if(condition.value, yes, after)
        with self.builder.inside(yes, after):
            yield
        self.builder.go_to(after)

    @contextmanager
    def either(self, condition: Mask) -> Iterator[tuple[Any, Any]]:
        """Yields two contexts: code in the first runs if the condition holds, code in the second if it does not."""
        yes, no, after = (self.function.append_block() for _ in range(3))
        self.builder.branch_if(condition.value, yes, no)
        yield self.builder.inside(yes, after), self.builder.inside(no, after)
        self.builder.go_to(after)

    def emit_either(self, condition: Mask, emit: Callable[[Any], object], yes: Any, no: Any) -> None:
        """Emits `emit(yes)` if the condition holds, and `emit(no)` if it does not."""
        with self.either(condition) as (where, elsewhere):
            with where:
                emit(yes)
            with elsewhere:
                emit(no)

    def prefetch(self, address: Number, offset: int = 0) -> None:
        """Has a cache line brought into the second cache; nothing happens if the address is not ours."""
        # For reading, kept in the second cache, as numbers.
        flags = [ir.write_integer(ir.I32, flag) for flag in (0, 2, 1)]
        self._invoke("llvm.prefetch.p0", ir.VOID, self._point(address, offset), *flags)

    # Threads.

    def add_atomically(self, address: Number, amount: Number | int) -> Number:
        """Adds to an int64 in memory, and returns the value before."""
        added = self.number(amount).value.text
        return Number(self, self.builder.give(ir.I64, f"atomicrmw add ptr {self._point(address, 0).text}, i64 {added} seq_cst"))

    def load_atomically(self, address: Number) -> Number:
        """Returns an int64 that another thread may write."""
        return Number(self, self.builder.give(ir.I64, f"load atomic i64, ptr {self._point(address, 0).text} seq_cst, align 8"))

    def store_atomically(self, address: Number, value: Number | int) -> None:
        """Writes an int64 that another thread may read."""
        stored = self.number(value).value.text
        self.builder.write(f"store atomic i64 {stored}, ptr {self._point(address, 0).text} seq_cst, align 8")

    def exchange_if(self, address: Number, expected: Number | int, wanted: Number | int) -> Mask:
        """Writes an int64 atomically if the expected value is there; returns whether it was."""
        before, after = self.number(expected).value.text, self.number(wanted).value.text
        pair, place = ir.Type("{ i64, i1 }"), self._point(address, 0).text
        both = self.builder.give(pair, f"cmpxchg ptr {place}, i64 {before}, i64 {after} seq_cst seq_cst")
        return Mask(self, self.builder.give(ir.I1, f"extractvalue {pair.text} {both.text}, 1"))

    def pause(self) -> None:
        """Tells the processor that the thread waits."""
        self._invoke("llvm.x86.sse2.pause", ir.VOID)

    def read_cycles(self) -> Number:
        """Returns a counter that grows with time, some two to four in a nanosecond."""
        return Number(self, self._invoke("llvm.readcyclecounter", ir.I64))

    def _point(self, address: Number, offset: int) -> Any:
        return self.builder.convert("inttoptr", (address + offset).value, ir.POINTER)
