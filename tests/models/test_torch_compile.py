"""torch.compile(model, backend="hetero"): modules with random weights beside eager torch, for several batches and lengths."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed; nox -s models installs it", exc_type=ImportError)
pytest.importorskip("onnxscript", reason="onnxscript is not installed; nox -s models installs it", exc_type=ImportError)

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from hetero_core import Core
from hetero_core.frontends import torch as frontend
from hetero_core.frontends.torch import TorchFallbackWarning

CPU = {"device": "CPU"}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        # torch's own, of its internals.
        warnings.filterwarnings("ignore", module="torch", category=DeprecationWarning)
        warnings.filterwarnings("ignore", module="torch", category=FutureWarning)
        yield


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of all networks that the backend has loaded."""
    devices: list[str] = []
    load = Core.load_network

    def count(self: Core, network: Any, device: str = "AUTO", config: Any = None, **options: Any) -> Any:
        devices.append(device)
        return load(self, network, device, config, **options)

    monkeypatch.setattr(Core, "load_network", count)
    return devices


class Function(nn.Module):
    """A module over other modules, with a function as its `forward`."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def u_net(m: Any, x: Tensor) -> Tensor:
    high = m.first(x)
    low = m.up(m.second(functional.max_pool2d(high, 2)))
    return m.last(torch.cat([high, functional.interpolate(low, size=high.shape[2:], mode="nearest")], 1))


def attend(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.project(x).view(x.shape[0], x.shape[1], 3, 4, 4).permute(2, 0, 3, 1, 4)
    return m.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))


def draw(*sizes: int) -> Tensor:
    return torch.randn(sizes)


def draw_ids(*sizes: int) -> Tensor:
    return torch.randint(0, 20, sizes)


LINES = [(11, 13), (2, 9), (6, 2), (4, 17), (3, 40), (15, 3)]
"""Batch and length, or batch and half the height of an image."""
APART = [(1, 8), (5, 1), (64, 3)]
"""Sizes for which torch compiles apart: a batch or a length of one, and convolutions of a batch of 16 and more."""
MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], tuple[Any, ...]]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), lambda n, s: (draw(n, s, 8),)),
    "cnn": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda n, s: (draw(n, 3, 2 * s + 4, 12),),
    ),
    "residual": (lambda: Function(lambda m, x: (x + m.b(m.a(x).relu())).relu(), a=nn.Conv2d(4, 4, 3, 1, 1), b=nn.Conv2d(4, 4, 1)),
     lambda n, s: (draw(n, 4, s + 2, 7),)),
    "attention": (lambda: Function(attend, project=nn.Linear(16, 48), out=nn.Linear(16, 16)), lambda n, s: (draw(n, s, 16),)),
    "multi_head": (
        lambda: Function(lambda m, x, y: m.a(x, y, y, need_weights=False)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)),
        lambda n, s: (draw(n, s, 8), draw(n, s + 3, 8)),
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)), lambda n, s: (draw_ids(n, s),)),
    "conv_transpose": (lambda: nn.Sequential(nn.ConvTranspose1d(3, 5, 4, stride=2, padding=1), nn.Tanh()),
     lambda n, s: (draw(n, 3, s + 2),)),
    "u_net": (
        lambda: Function(
            u_net,
            first=nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.SiLU()),
            second=nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.LeakyReLU(0.1)),
            up=nn.ConvTranspose2d(8, 4, 2, stride=2),
            last=nn.Conv2d(8, 2, 1),
        ),
        lambda n, s: (draw(n, 1, 2 * s + 2, 8),),
    ),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True),
     lambda n, s: (draw(n, s, 16),)),
    "decoder_layer": (lambda: nn.TransformerDecoderLayer(16, 2, 32, activation="gelu", batch_first=True),
     lambda n, s: (draw(n, s, 16), draw(n, s + 2, 16))),
    "layer_norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Softplus(), nn.Softmax(-1)), lambda n, s: (draw(n, s, 6),)),
    "pooling": (
        lambda: Function(lambda m, x: (functional.avg_pool2d(x, 3, 2, 1), functional.max_pool2d(x, 2), x.amax(2), x.mean(0))),
        lambda n, s: (draw(n, 3, 2 * s + 2, 6),),
    ),
    "einsum": (lambda: Function(lambda m, x: torch.einsum("bij,bkj->bik", m.a(x), x), a=nn.Linear(5, 5)),
     lambda n, s: (draw(n, s, 5),)),
    "indexing": (
        lambda: Function(lambda m, x, ids: (x[:, ids[0]], x[:, 1:, ::2], x[:, -1], x.gather(1, ids[:, :, None].expand(-1, -1, 6)))),
        lambda n, s: (draw(n, s, 6), draw_ids(n, s) % s),
    ),
    "grouped_conv": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3, groups=2), nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Hardswish()),
        lambda n, s: (draw(n, 4, s + 3),),
    ),
    "dict_of_outputs": (lambda: Function(lambda m, x: {"y": m.a(x), "more": (x * 2, None, [x.sum((1, 2)) > 0])}, a=nn.Linear(4, 4)),
     lambda n, s: (draw(n, s, 4),)),
    "int_inputs": (lambda: Function(lambda m, x, count, ids: (x[:, :count] * count, ids + x.shape[0], ids // 3)),
     lambda n, s: (draw(n, s, 2), s, draw_ids(n, s))),
    "masks": (lambda: Function(lambda m, x: x.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e4).softmax(-1)),
     lambda n, s: (draw(n, s, s),)),
    "sorting": (lambda: Function(lambda m, x: (*x.topk(2, 1), x.sort(1)[0], x.cumsum(1))), lambda n, s: (draw(n, s + 1),)),
    "padded_encoder": (
        lambda: Function(
            lambda m, ids, padding: m.layer(m.words(ids), src_key_padding_mask=padding),
            words=nn.Embedding(20, 8), layer=nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True),
        ),
        lambda n, s: (draw_ids(n, s), torch.arange(s) >= torch.randint(1, s + 1, (n, 1))),
    ),
}  # fmt: skip


def flatten(outputs: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(outputs)


def check_equal(outputs: Any, expected: Any) -> None:
    leaves, expected_leaves = flatten(outputs), flatten(expected)
    assert len(leaves) == len(expected_leaves)
    for value, reference in zip(leaves, expected_leaves, strict=True):
        assert type(value) is type(reference)
        if isinstance(value, Tensor):
            assert value.dtype == reference.dtype
            torch.testing.assert_close(value, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_module_of_any_batch_and_length(name: str, loads: list[str]) -> None:
    make, draw_inputs = MODULES[name]
    model = make().eval()
    compiled = torch.compile(model, backend="hetero", options=CPU, dynamic=True)
    for line in LINES:
        inputs = draw_inputs(*line)
        check_equal(compiled(*inputs), model(*inputs))
    assert loads == ["CPU"]
    assert counters["stats"]["unique_graphs"] == 1
    for number, line in enumerate(APART, 2):
        inputs = draw_inputs(*line)
        check_equal(compiled(*inputs), model(*inputs))
        assert len(loads) == counters["stats"]["unique_graphs"] <= number


def test_lstm_runs_on_the_device_if_dynamo_may_record_it(loads: list[str]) -> None:
    model = Function(lambda m, x: m.out(m.lstm(x)[0]), lstm=nn.LSTM(4, 5, batch_first=True), out=nn.Linear(5, 2)).eval()
    x = draw(3, 7, 4)
    check_equal(torch.compile(model, backend="hetero", options=CPU)(x), model(x))
    assert loads == []
    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(model, backend="hetero", options=CPU)
        check_equal(compiled(x), model(x))
        with pytest.warns(TorchFallbackWarning, match="runs in torch"):
            check_equal(compiled(x := draw(3, 9, 4)), model(x))
    assert loads == ["CPU"]


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def test_first_new_size_is_the_only_recompilation(loads: list[str]) -> None:
    model = make_mlp()
    compiled = torch.compile(model, backend="hetero", options=CPU)
    for size in (5, 7, 2, 90):
        x = draw(size, 4)
        check_equal(compiled(x), model(x))
    assert len(loads) == counters["stats"]["unique_graphs"] == 2


def train_step(model: Any, kind: Any, **options: Any) -> None:
    with torch.enable_grad():
        optimizer = kind(model.parameters(), lr=0.1, **options)
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: train_step(model, torch.optim.SGD, momentum=0.9),
    "adam": lambda model: train_step(model, torch.optim.Adam, foreach=True),
    "fused_adam": lambda model: train_step(model, torch.optim.AdamW, fused=True),
    "in_place": lambda model: model[0].weight.mul_(2),
    "element_of_data": lambda model: model[2].weight.data[0, 1].fill_(9),
    "array": lambda model: model[2].bias.numpy().fill(7),
    "nan": lambda model: model[2].bias.fill_(float("nan")),
    "replaced_data": lambda model: setattr(model[0].weight, "data", torch.ones(8, 4)),
    "replaced_parameter": lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(8, 4))),
    "state": lambda model: model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}),
}


def test_changed_weights_are_seen(loads: list[str]) -> None:
    model, x = make_mlp(), draw(3, 4)
    compiled = torch.compile(model, backend="hetero", options=CPU)
    assert torch.equal(compiled(x), compiled(x))
    assert len(loads) == 1
    for change in [*CHANGES.values(), *CHANGES.values()]:
        change(model)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_parametrized_weights_are_seen(loads: list[str]) -> None:
    model, x = make_mlp(), draw(3, 4)
    nn.utils.parametrizations.weight_norm(model[0])
    compiled = torch.compile(model, backend="hetero", options=CPU)
    check_equal(compiled(x), model(x))
    model[0].parametrizations.weight.original0.mul_(3)
    check_equal(compiled(x), model(x))
    model[0].parametrizations.weight.original1.data[0] = -1
    check_equal(compiled(x), model(x))
    assert len(loads) == 3


WHOLE: dict[str, Callable[[Tensor], Any]] = {
    "average": lambda weight: weight.data.mul_(0.9),
    "copy": lambda weight: weight.data.copy_(torch.ones_like(weight)),
    "clamp": lambda weight: weight.data.clamp_(-1e-3, 1e-3),
    "array": lambda weight: np.copyto(weight.numpy(), weight.numpy()[::-1].copy()),
}


@pytest.mark.parametrize("layout", ["rows", "columns", "every_second"])
@pytest.mark.parametrize("name", WHOLE)
def test_uncounted_changes_of_whole_large_weights_are_seen_at_once(name: str, layout: str, loads: list[str]) -> None:
    model, x = nn.Linear(1000, 701), draw(2, 1000)
    storage = {"rows": draw(701, 1000), "columns": draw(1000, 701).T, "every_second": draw(701, 2000)[:, ::2]}[layout]
    model.weight.data = storage
    compiled = torch.compile(model, backend="hetero", options=CPU)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    WHOLE[name](model.weight)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert len(loads) == 2


@pytest.mark.parametrize("place", [1, 350_001, 700_999])
def test_uncounted_change_of_an_element_is_seen_at_once(place: int, loads: list[str]) -> None:
    model, x = nn.Linear(1000, 701), draw(2, 1000)
    compiled = torch.compile(model, backend="hetero", options=CPU)
    compiled(x)
    model.weight.data.view(-1)[place] = 100
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert len(loads) == 2


@pytest.mark.parametrize("name", ["in_place", "replaced_data", "replaced_parameter", "state"])
def test_changes_that_torch_counts_are_seen_with_freezing(name: str, loads: list[str]) -> None:
    model, x = make_mlp(), draw(3, 4)
    compiled = torch.compile(model, backend="hetero", options={**CPU, "freezing": True})
    compiled(x)
    CHANGES[name](model)
    check_equal(compiled(x), model(x))
    check_equal(compiled(x), model(x))
    assert len(loads) == 2


def test_modes_have_equal_results(loads: list[str]) -> None:
    """In training the graph stays in torch; the two modes without gradients share the device."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 3)).eval()
    compiled = torch.compile(model, backend="hetero", options=CPU, dynamic=True)
    for _ in range(2):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                check_equal(compiled(x := draw(5, 4)), model(x))
        twin = copy.deepcopy(model).train()
        model.train()
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", TorchFallbackWarning)
            check_equal(compiled(x := draw(6, 4)), twin(x))
        torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
        model.eval()
    assert set(loads) == {"CPU"}


def test_layers_of_one_structure_share_a_graph(loads: list[str]) -> None:
    layers = [Function(lambda m, x: m.a(x).relu(), a=nn.Linear(4, 4)).eval() for _ in range(3)]
    x = expected = draw(5, 4)
    for layer in layers:
        expected = layer(expected)
        layer.compile(backend="hetero", options=CPU)
    for _ in range(2):
        y = x
        for layer in layers:
            y = layer(y)
        torch.testing.assert_close(y, expected)
    assert len(loads) == 3


def test_graph_breaks_make_pieces(loads: list[str]) -> None:
    model = make_mlp()

    def run(x: Tensor) -> Tensor:
        y = model(x)
        if y.sum() > 0:
            return y * 2
        return y - 1

    compiled = torch.compile(run, backend="hetero", options=CPU)
    for x in (draw(5, 4), draw(5, 4) * 10, draw(5, 4) - 10):
        check_equal(compiled(x), run(x))
    assert len(loads) >= 2


REFUSALS: dict[str, tuple[Callable[..., Any], str]] = {
    "random": (lambda x: x + torch.rand(3), "aten.rand.default draws random numbers"),
    "change": (lambda x: x.add_(1), "in place, and a network changes no input"),
    "unknown": (lambda x: torch.linalg.eigvals(x @ x.T), "aten.linalg_eig"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_exported_runs_in_torch_with_a_warning(name: str) -> None:
    function, reason = REFUSALS[name]
    compiled = torch.compile(function, backend="hetero", options=CPU)
    torch.manual_seed(0)
    with pytest.warns(TorchFallbackWarning, match="runs in torch, not on CPU") as caught:
        value = compiled(torch.ones(3, 3))
    assert reason in str(caught[0].message)
    assert "test_torch_compile.py" in str(caught[0].message)
    torch.manual_seed(0)
    torch.testing.assert_close(value, function(torch.ones(3, 3)))


def test_device_that_refuses_nodes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"device": "TEMPLATE", "TEMPLATE_REFUSED_OPERATORS": "Relu"}
    model = make_mlp()
    compiled = torch.compile(model, backend="hetero", options=options)
    with pytest.warns(TorchFallbackWarning, match="(?s)not on TEMPLATE.*Relu"):
        check_equal(compiled(x := draw(2, 4)), model(x))


def test_gradients_are_recorded_by_torch() -> None:
    model, x = make_mlp(), draw(2, 4)
    compiled = torch.compile(model, backend="hetero", options=CPU)
    with torch.enable_grad():
        with pytest.warns(TorchFallbackWarning, match="gradients are recorded"):
            y = compiled(x)
        y.sum().backward()
    assert model[0].weight.grad is not None
    assert not compiled(x).requires_grad


@pytest.mark.parametrize(
    ("options", "message"), [({"device": "CPUU"}, "did you mean 'CPU'"), ({"device": "CPU", "PERF": 1}, "PERF")]
)
def test_wrong_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        torch.compile(make_mlp(), backend="hetero", options=options)(draw(2, 4))


def test_dtypes_share_memory_with_arrays() -> None:
    dtypes = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    for dtype in [*dtypes, torch.float8_e4m3fn, torch.float8_e5m2]:
        tensor = torch.arange(6).reshape(2, 3).to(torch.float32).to(dtype)
        array = frontend.array_of_tensor(tensor)
        assert array.__array_interface__["data"][0] == tensor.data_ptr()
        back = frontend.tensor_of_array(array, torch.device("cpu"))
        assert (back.dtype, back.data_ptr()) == (dtype, tensor.data_ptr())
    np.testing.assert_array_equal(frontend.array_of_tensor(torch.arange(6).reshape(2, 3).T), np.arange(6).reshape(2, 3).T)


def test_network_of_programs(loads: list[str]) -> None:
    model, x = make_mlp(), draw(3, 4)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with Core() as core, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sources = (program, torch.onnx.export(program, dynamo=True, verbose=False))
        for source in sources:
            y = draw(7, 4)
            (value,) = core.load_network(source, "CPU").infer([y]).values()
            torch.testing.assert_close(torch.from_numpy(value), model(y))


def test_program_that_changes_inputs_or_statistics_is_refused() -> None:
    for model, x, name in (
        (Function(lambda m, x: x.add_(1)), draw(3), "'.*'"),
        (nn.BatchNorm1d(3), draw(2, 3), "'.*running_mean'"),
    ):
        program = torch.export.export(model, (x,))
        with Core() as core, pytest.raises(ValueError, match=f"it changes {name} in place, and a network changes no input"):
            core.read_network(program)


def test_exported_program_without_onnxscript_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(make_mlp(), (draw(3, 4),))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with Core() as core, pytest.raises(ValueError, match="pip install onnxscript"):
        core.read_network(program)
