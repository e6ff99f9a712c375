"""The drawing of a plan that HETERO_DUMP_GRAPH_DOT asks for, as a file in the working folder."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from hetero_core.files import replace_file
from hetero_core.plan import Plan

logger = logging.getLogger(__name__)


def write_drawing(plan: Plan) -> None:
    """Writes the plan in the DOT language to hetero_subgraphs_<network>.dot. Raises: OSError where the folder cannot be written."""
    from hetero_core.reports.dot import plan_to_dot  # the views of plans, which a load does without

    name = re.sub(r"[^\w.-]", "_", plan.network)
    path = Path(f"hetero_subgraphs_{name}.dot").absolute()
    with replace_file(path) as stream:
        stream.write(plan_to_dot(plan).encode())
    logger.info("the plan of network '%s' is drawn in %s", plan.network, path)
