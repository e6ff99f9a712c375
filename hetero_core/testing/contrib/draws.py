"""The draws of all contrib operators of ONNX Runtime, by operator."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_core.testing.contrib.arrays import ARRAYS
from hetero_core.testing.contrib.attention import ATTENTION
from hetero_core.testing.contrib.blocks import BLOCKS
from hetero_core.testing.contrib.case import Draw
from hetero_core.testing.contrib.fused import FUSED
from hetero_core.testing.contrib.quantized import QUANTIZED
from hetero_core.testing.contrib.quantized_products import PRODUCTS
from hetero_core.testing.contrib.sequences import SEQUENCES

DRAWS: Mapping[str, Draw] = {**QUANTIZED, **PRODUCTS, **FUSED, **ARRAYS, **BLOCKS, **ATTENTION, **SEQUENCES}
