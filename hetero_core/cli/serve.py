"""`hetero serve`: answers requests for models over HTTP and gRPC, by the Open Inference Protocol, until it is told to end."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_repeated, open_named_model, read_config, read_seconds, whole_number
from hetero_core.core import Core


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    count, port = whole_number(1), whole_number(0, 65535)
    models = "a file, NAME=FILE, or a folder with NAME.onnx or NAME/VERSION/model.onnx; compiled models end with .blob"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=models)
    text = "for all models that are not compiled (AUTO); BATCH:GPU(16) gathers requests"
    parser.add_argument("-d", "--device", default="AUTO", metavar="DEVICE", help=text)
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the device; may be repeated")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (127.0.0.1); 0.0.0.0 is everywhere")
    parser.add_argument("--http-port", type=port, default=8000, metavar="PORT", help="the port of REST (8000); 0 is any")
    parser.add_argument("--grpc-port", type=port, default=8001, metavar="PORT", help="the port of gRPC (8001); 0 is any")
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="processes, each with all models (1)")
    parser.add_argument("--max-body", type=count, default=64, metavar="MIB", help="the longest request, in MiB (64)")
    parser.add_argument("--queue", type=count, default=128, metavar="N", help="unanswered requests of a model version (128)")
    text = "how long requests may take at the end (30)"
    parser.add_argument("--grace", type=read_seconds, default=30.0, metavar="SECONDS", help=text)


def answer(options: argparse.Namespace) -> Answer:
    """Serves, and returns where it did. Raises: UsageError without the packages of the extra `serve`."""
    try:
        from hetero_core.serving.repository import find_models
        from hetero_core.serving.server import Settings, serve  # the packages of the extra
    except ModuleNotFoundError as error:
        raise UsageError(f"'hetero serve' needs the package {error.name}: pip install 'hetero-core[serve]'") from error
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(open_named_model(model)) for model in options.models]
        pairs = zip(options.models, paths, strict=True)
        options.models = tuple(path if path == model else f"{model}={path}" for model, path in pairs)
        options.config = read_config(options)
        names = list(find_models(options.models))
        with Core() as core:
            core.resolve_config(options.device, options.config)
        fields: dict[str, Any] = {"models": names, "device": options.device}
        step = stack.enter_context(contextlib.ExitStack())
        step.enter_context(follow(options)(f"loading {', '.join(names)} on {options.device}"))

        def announce(http: str, grpc: str) -> None:
            step.close()
            fields.update(http=http, grpc=grpc)
            if not options.json:
                print(f"serving {', '.join(names)} on {options.device}: {http}, gRPC {grpc}", flush=True)

        serve(Settings(**{name: getattr(options, name) for name in Settings.__dataclass_fields__}), announce)
    return Answer("all requests are answered; the server has ended", fields)
