"""`hetero verify`: imports an exported network on this machine, runs the samples in it, and compares the outputs."""

from __future__ import annotations

import argparse

from hetero_core.blobs.container import read_undigested
from hetero_core.cli.answer import OK, WRONG_RESULT, Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_repeated, add_rtol, read_config, whole_number
from hetero_core.composing.runs import warm_up
from hetero_core.core import Core


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument("blob", metavar="BLOB", help="what 'hetero compile --samples' wrote")
    parser.add_argument("-d", "--device", metavar="DEVICE", help="the device, with its id if it has several (that of the file)")
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key that affects runs only")
    parser.add_argument("--trust", action="store_true", help="use code in the file as well; not needed for data")
    add_rtol(parser)
    parser.add_argument("--runs", type=whole_number(1), default=3, metavar="N", help="runs of all samples, the first included (3)")


def answer(options: argparse.Namespace) -> Answer:
    """Returns the outputs beside the samples'; exit code 1 if one differs. Raises: UsageError without samples; errors of an import."""
    from hetero_core.blobs.samples import PREFIX, unpack_samples
    from hetero_core.cli.outputs import compare_samples, format_comparison

    sections, step = read_undigested(options.blob)[1].sections, follow(options)
    if not any(name.startswith(PREFIX) for name in sections):
        command = f"hetero compile MODEL -d DEVICE --samples inputs.npz -o {options.blob}"
        raise UsageError(f"'{options.blob}' holds no samples; write it again with: {command}")
    with Core() as core:
        with step(f"importing '{options.blob}'"):
            loaded = core.import_network(options.blob, options.device, read_config(options), trust=options.trust)
        samples = unpack_samples(sections)  # the import has checked them
        with step(f"running the samples of network '{loaded.name}' on {loaded.device}"):
            rows = compare_samples(loaded, samples, rtol=options.rtol)
            for _ in range(options.runs - 1):
                warm_up(loaded, lambda: loaded.infer(samples[0][0]), 60.0)
                again = compare_samples(loaded, samples, rtol=options.rtol)
                rows = [max(pair, key=lambda row: row["mismatch"] is not None) for pair in zip(rows, again, strict=True)]
        fields = {"network": loaded.name, "device": str(loaded.device), "samples": len(samples)}
    agrees = all(row["mismatch"] is None for row in rows)
    title = f"network '{fields['network']}' on {fields['device']}, {options.runs} runs"
    text = f"{title}\n{format_comparison(rows, f'the samples in {options.blob}')}"
    return Answer(text, {**fields, "agrees": agrees, "outputs": rows}, OK if agrees else WRONG_RESULT)
