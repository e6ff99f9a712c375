"""`hetero serve`: answers requests for models over HTTP and gRPC, by the Open Inference Protocol, until it is told to end."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from hetero_core.cli.answer import Answer, UsageError, follow
from hetero_core.cli.options import Parser, add_repeated, open_named_model, read_config, read_seconds, whole_number
from hetero_core.core import Core

if TYPE_CHECKING:
    from hetero_core.serving.server import Addresses


def add_options(parser: Parser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a file, NAME=FILE, or a folder with NAME.onnx or NAME/VERSION/model.onnx"
    )
    parser.add_argument(
        "-d", "--device", default="AUTO", metavar="DEVICE", help="for all models (AUTO); BATCH:GPU(16) gathers requests"
    )
    add_repeated(parser, "-c", "--config", metavar="KEY=VALUE", help="a configuration key of the device; may be repeated")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (127.0.0.1); 0.0.0.0 is everywhere")
    parser.add_argument("--http-port", type=whole_number(0), default=8000, metavar="PORT", help="the port of REST (8000); 0 is any")
    parser.add_argument("--grpc-port", type=whole_number(0), default=8001, metavar="PORT", help="the port of gRPC (8001); 0 is any")
    parser.add_argument("--workers", type=whole_number(1), default=1, metavar="N", help="processes, each with all models (1)")
    parser.add_argument("--max-body", type=whole_number(1), default=64, metavar="MIB", help="the longest request, in MiB (64)")
    parser.add_argument(
        "--queue", type=whole_number(1), default=128, metavar="N", help="unanswered requests of a model version (128)"
    )
    parser.add_argument(
        "--grace", type=read_seconds, default=30.0, metavar="SECONDS", help="how long requests may take at the end (30)"
    )
    parser.add_argument("--trust", action="store_true", help="run code in exported networks as well; not needed for data")


def answer(options: argparse.Namespace) -> Answer:
    """Serves, and returns where. Raises: UsageError without the packages of the extra `serve`."""
    try:
        from hetero_core.serving.repository import find_models
        from hetero_core.serving.server import Settings, serve  # the packages of the extra
    except ModuleNotFoundError as error:
        raise UsageError(f"hetero serve needs {error.name}: pip install 'hetero-core[serve]'") from error
    fields: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        places = [
            f"{place}={path}" if (path := stack.enter_context(open_named_model(place))) != place else place
            for place in options.models
        ]
        names = list(find_models(places))
        config = read_config(options)
        with Core() as core:
            core.resolve_config(options.device, config)
        step = stack.enter_context(contextlib.ExitStack())
        step.enter_context(follow(options)(f"loading {', '.join(names)} on {options.device}"))

        def announce(addresses: Addresses) -> None:
            step.close()
            fields.update(models=names, device=options.device, http=addresses.http, grpc=addresses.grpc)
            if not options.json:
                print(f"serving {', '.join(names)} on {options.device}: {addresses.http}, gRPC {addresses.grpc}", flush=True)

        settings = Settings(
            tuple(places),
            options.device,
            config,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            workers=options.workers,
            max_body=options.max_body * 2**20,
            queue=options.queue,
            grace=options.grace,
            trust=options.trust,
        )
        serve(settings, announce)
    return Answer("all requests are answered; the server has ended", fields)
