"""Contract of blobs: an imported blob is the network that was exported, and invalid blobs are refused. Also the cache."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import pickletools
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_core.blobs.container import read_blob, write_blob
from hetero_core.conformance.check import CheckContext, Skip, check, require, require_equal, require_error, require_same
from hetero_core.conformance.samples import Arrays, export_bytes, make_sample, make_samples, run_in_own_process
from hetero_core.errors import BlobMismatchError, HeteroError, InputNameError
from hetero_core.network.border import InputInfo
from hetero_core.transforms.editing import edit

if TYPE_CHECKING:
    from hetero_core.core import Core


def _import_and_run(core: Core, blob: bytes, device: str, inputs: Arrays) -> Arrays:
    return core.import_network(blob, device).infer(inputs)


@check("exporting", level="export", needs=["export"])
def imported_network_is_the_exported_one(context: CheckContext) -> None:
    """Names, types, fingerprint and results are the same after export and import, in another Core, and after a second export; unknown
    inputs are still refused."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair", "constant", "through").items():
        loaded = context.load(sample.network)
        blob = export_bytes(loaded)
        with context.make_core() as other:
            imported = other.import_network(blob, context.device)
            for side in ("inputs", "outputs"):
                specs = [(spec.name, spec.type) for spec in getattr(imported, side)]
                require_equal(specs, [(spec.name, spec.type) for spec in getattr(loaded, side)], f"{side} of '{form}', imported")
            require_equal(imported.name, loaded.name, "the name")
            require_equal(imported.fingerprint, loaded.fingerprint, "the fingerprint")
            inputs = sample.draw(context.seed)
            sample.require_right(imported.infer(inputs), inputs, f"'{form}', imported")
            if form != "through":  # whose output is a tensor of its inputs
                sample.require_started(imported.create_infer_request(), inputs, f"'{form}', imported, an asynchronous run")
            again = other.import_network(export_bytes(imported), context.device)
            sample.require_right(again.infer(inputs), inputs, f"'{form}', exported, imported, exported and imported")
            require_error(InputNameError, imported.infer, "an unknown input", {"no_such_input": 1})


@check("exporting", level="export", needs=["export"])
def export_is_deterministic(context: CheckContext) -> None:
    """Two exports of a loaded network, and exports of two loads in two Cores, have the same bytes in the same sections."""
    for form, sample in make_samples(context, "chain", "pair").items():
        loaded = context.load(sample.network)
        _, payload = read_blob(export_bytes(loaded))
        with context.make_core() as other, other.load_network(sample.network, context.device) as second:
            for what, network in (("exported again", loaded), ("loaded again and exported", second)):
                _, again = read_blob(export_bytes(network))
                require_equal(sorted(again.sections), sorted(payload.sections), f"the sections of '{form}', {what}")
                changed = [name for name, section in payload.sections.items() if bytes(section) != bytes(again.sections[name])]
                what = f"the sections of '{form}', {what}, that have other bytes; the export is not deterministic"
                require_equal(changed, [], what)


@check("exporting", level="export", needs=["export"])
def payload_of_another_version_is_refused(context: CheckContext) -> None:
    """A blob whose payload has a version that the plugin does not read raises BlobMismatchError: `payload.require_version` is called."""
    sample = make_sample(context, "chain")
    header, payload = read_blob(export_bytes(context.load(sample.network)))
    stream = io.BytesIO()
    write_blob(replace(header, payload_version=payload.version + 1000), payload, stream)
    what = f"a blob whose payload has the version {payload.version + 1000}, not {payload.version}: payload.version is not read"
    require_error(BlobMismatchError, context.import_blob, what, stream.getvalue())


@check("exporting", level="export", needs=["export"])
def blobs_may_stand_anywhere_in_a_stream(context: CheckContext) -> None:
    """Two blobs between other bytes of a stream are read in order, each as the network that was written there."""
    samples = make_samples(context, "chain", "fork", "pair", "dynamic")
    head, tail = b"these bytes are somebody else's", b"and so are these"
    stream = io.BytesIO()
    stream.write(head)
    for sample in samples.values():
        context.load(sample.network).export_network(stream)
    stream.write(tail)
    stream.seek(len(head))
    for index, (form, sample) in enumerate(samples.items()):
        inputs = sample.draw(context.seed)
        with context.import_blob(stream) as imported:
            what = f"blob {index + 1} of {len(samples)} in one stream, that of '{form}'"
            require_equal(imported.name, sample.network.name, f"{what}, the name")
            sample.require_working(partial(imported.infer, inputs), inputs, what)
    require_equal(stream.read(), tail, "what stands behind the last blob of a stream")


@check("exporting", level="export", needs=["export"])
def descriptions_come_with_the_blob(context: CheckContext) -> None:
    """`input_info` and `output_info` are the same after export and import: precision, shape, and the program's layout."""
    for form, sample in make_samples(context, "dynamic", "pair").items():
        # Another name for the network's own axis order (NC by default), so that no transpose is needed.
        layouts = {spec.name: InputInfo(layout="WH", model_layout="WH") for spec in sample.network.inputs}
        network = edit(sample.network).with_inputs(layouts)
        loaded = context.load(network)
        imported = context.import_blob(export_bytes(loaded))
        for what in ("input_info", "output_info"):
            require_equal(dict(getattr(imported, what)), dict(getattr(loaded, what)), f"{what} of '{form}', imported")
        imported_layouts = {described.layout for described in imported.input_info.values()}
        require_equal(imported_layouts, {"WH"}, f"the layouts of '{form}', imported")


@check("exporting", level="export", needs=["export"])
def another_process_imports_the_blob(context: CheckContext) -> None:
    """A blob is self-contained: a new process that has loaded nothing imports it and computes the same results."""
    form, sample = next(iter(make_samples(context, "constant", "chain").items()))
    inputs = sample.draw(context.seed)
    what = f"another process cannot import the blob of '{form}', which refers to what this one holds"
    loaded = context.load(sample.network)
    outputs = run_in_own_process(context, loaded.export_network, inputs, {}, kind="blob", what=what)
    sample.require_right(outputs, inputs, f"'{form}', imported by another process")


@check("exporting", level="export", needs=["export"])
def every_choice_comes_with_the_blob(context: CheckContext) -> None:
    """Under each choice that a key declares, an import computes the same results as the load: the choice is stored in the blob."""
    sample = make_sample(context, "chain")
    inputs = sample.draw(context.seed)
    # Bool keys of composed devices are skipped: some write files, such as HETERO's key for its plan.
    switches = (False, True) if "single" in context.facts.capabilities else ()
    for name, key in context.facts.keys.items():
        for choice in switches if key.type is bool else key.choices:
            try:
                loaded = context.load(sample.network, {name: choice})
            except HeteroError:
                continue  # this machine or network does not support the choice
            imported = context.import_blob(export_bytes(loaded))
            require_equal(imported.get_config(name), loaded.get_config(name), f"{name} of the import")
            for output, value in loaded.infer(inputs).items():
                require_same(imported.infer(inputs)[output], value, f"imported under {name}={choice}, output '{output}'")


@check("exporting", level="export", needs=["export"])
def blob_is_for_one_architecture(context: CheckContext) -> None:
    """A blob names the id and the architecture of its device. Every id of that architecture imports it and computes the same results; for
    any other architecture, the import raises BlobMismatchError."""
    sample = make_sample(context, "chain")
    loaded = context.load(sample.network)
    blob = export_bytes(loaded)
    header, payload = read_blob(blob)
    if not header.architecture:
        raise Skip("the device is made of devices, whose blobs name their own architectures")
    require_equal(header.device_id, loaded.device.id, "the id in the blob")
    require_equal(header.architecture, context.get_metric("DEVICE_ARCHITECTURE"), "the architecture in the blob")
    core, inputs = context.core, sample.draw(context.seed)
    for device_id in context.facts.ids if "ids" in context.facts.capabilities else ():
        device = f"{context.facts.name}.{device_id}"
        what = f"a blob of {loaded.device} for '{header.architecture}', imported on {device}"
        if core.get_metric(device, "DEVICE_ARCHITECTURE") != header.architecture:
            require_error(BlobMismatchError, core.import_network, what, blob, device)
            continue
        what = f"{what}, which states the same architecture"
        sample.require_working(partial(_import_and_run, core, blob, device, inputs), inputs, what)
    stream = io.BytesIO()
    write_blob(replace(header, architecture=f"not {header.architecture}"), payload, stream)
    require_error(BlobMismatchError, context.import_blob, "a blob of another architecture", stream.getvalue())
    for source, fits in ((blob, True), (stream.getvalue(), False)):
        require_equal(core.check_blob(source, context.device).answer != "does not fit", fits, "check_blob beside the import")


@check("exporting", level="export", needs=["export"])
def pickled_sections_are_marked_as_code(context: CheckContext) -> None:
    """Unpickling executes arbitrary functions, so a pickled section is marked as code and imported only by consent."""
    sample = make_sample(context, "chain")
    _, payload = read_blob(export_bytes(context.load(sample.network)))
    for name, section in payload.sections.items():
        kind = "" if name in payload.code else describe_pickle(bytes(section))
        require(not kind, f"section '{name}' is {kind} and not marked as code in Payload.code")


@check("exporting", level="export", needs=["export"])
def second_load_comes_from_the_cache(context: CheckContext) -> None:
    """With CACHE_DIR the first load writes a cache entry and the second is a hit; without it there is no hit; results are equal."""
    for form, sample in make_samples(context, "chain", "dynamic", "fork", "pair").items():
        inputs = sample.draw(context.seed)
        with tempfile.TemporaryDirectory(prefix="größe-模型-") as folder:
            for turn, expected in enumerate((False, True, True)):
                with context.make_core() as core:
                    loaded = core.load_network(sample.network, context.device, {"CACHE_DIR": folder})
                    is_cached = loaded.get_metric("LOADED_FROM_CACHE")
                    require_equal(is_cached, expected, f"LOADED_FROM_CACHE of load {turn + 1} of '{form}'")
                    sample.require_right(loaded.infer(inputs), inputs, f"load {turn + 1} of '{form}' with a cache")
                count = len(list(Path(folder).rglob("*.blob")))
                require_equal(count, 1, f"the number of entries after load {turn + 1} of '{form}'")
            plain = context.load(sample.network)
            require_equal(plain.get_metric("LOADED_FROM_CACHE"), False, "LOADED_FROM_CACHE without a cache")


def describe_pickle(section: bytes) -> str:
    """Returns "a pickle", "gzip of a pickle" or the like for a section that contains a pickle, else "". Unpickles nothing."""
    if _is_pickle(section):
        return "a pickle"
    if section.startswith(b"\x93NUMPY") and b"'|O'" in section[:256]:
        return "an array of pickled objects"
    for name, unpack in _PACKERS.items() if section else ():
        with suppress(OSError, EOFError, ValueError, RuntimeError, lzma.LZMAError, zlib.error, zipfile.BadZipFile):
            for part in unpack(section):
                if described := describe_pickle(part):
                    return f"{name} of {described}"
    return ""


def _read_archive(section: bytes) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(section)) as archive:
        yield from map(archive.read, archive.namelist())


_PACKERS: Mapping[str, Callable[[bytes], Iterable[bytes]]] = {
    "gzip": lambda section: [gzip.decompress(section)],
    "bz2": lambda section: [bz2.decompress(section)],
    "lzma": lambda section: [lzma.decompress(section, lzma.FORMAT_XZ)],
    "zlib": lambda section: [zlib.decompress(section)],
    "an archive": _read_archive,
}
"""Name of a format -> the function that unpacks it, which raises an error for bytes in another format."""


def _is_pickle(section: bytes) -> bool:
    """Says whether bytes parse as a pickle up to its last operation; protocols 0 and 1 have no header and must fill all bytes."""
    has_head = section[:1] == pickle.PROTO and section[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    try:
        last = [(operation.name, position) for operation, _, position in pickletools.genops(section)][-1:]
    except (ValueError, UnicodeDecodeError, OverflowError):
        return False
    return bool(last) and (has_head or last[0][1] == len(section.rstrip(b"\0")) - 1 > 0)
