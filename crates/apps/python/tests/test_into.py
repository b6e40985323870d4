"""``straightway.torch.load_into``: weights of an existing module are replaced in place."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import straightway.torch as st  # noqa: E402


class Net(torch.nn.Module):
    """A module with tied weights, a buffer, and parameters of several dtypes."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(64, 32)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))
        self.head = torch.nn.Linear(32, 64, bias=False)
        self.head.weight = self.embed.weight
        self.narrow = torch.nn.Parameter(torch.randn(16, 8, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(seed))


def saved(tmp_path, net, name="model.safetensors"):
    path = tmp_path / name
    st.save_model(net, path)
    return path


def pointers(net):
    return {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}


def same(a, b):
    return all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


@pytest.mark.parametrize("route", ["auto", "buffered"])
def test_parameters_keep_their_memory_and_get_the_values(tmp_path, route):
    old, new = Net(1), Net(2)
    path = saved(tmp_path, new)
    before = pointers(old)
    done = st.load_into(old, path, route=route, batch_bytes=1 << 10)
    assert same(old, new) and pointers(old) == before
    assert old.head.weight is old.embed.weight and old.embed.weight.requires_grad
    assert done.missing == done.unexpected == []
    assert sum(receipt.bytes for receipt in done.receipts) == sum(p.nbytes for p in new.parameters()) + 8


def test_a_function_maps_names_and_leaves_tensors_out(tmp_path):
    new = Net(2)
    state = {f"model.{name}": t.clone() for name, t in new.state_dict().items() if name != "head.weight"}
    st.save_file(state | {"extra.weight": torch.ones(3)}, tmp_path / "m.safetensors")
    old = Net(1)

    def rename(name):
        return name.removeprefix("model.") if name.startswith("model.") else None

    st.load_into(old, tmp_path / "m.safetensors", rename=rename)
    assert same(old, new)


def test_a_difference_of_names_is_reported_before_anything_is_written(tmp_path):
    new = Net(2)
    state = {name: t.clone() for name, t in new.state_dict().items() if name not in ("head.weight", "layers.1.bias")}
    st.save_file(state | {"extra.weight": torch.ones(3)}, tmp_path / "m.safetensors")
    old, same_as_old = Net(1), Net(1)
    with pytest.raises(RuntimeError, match="missing: 'layers.1.bias'(.|\n)*unexpected: 'extra.weight'"):
        st.load_into(old, tmp_path / "m.safetensors")
    assert same(old, same_as_old)
    done = st.load_into(old, tmp_path / "m.safetensors", strict=False)
    assert done.missing == ["layers.1.bias"] and done.unexpected == ["extra.weight"]
    assert torch.equal(old.layers[0].bias, new.layers[0].bias)
    assert torch.equal(old.layers[1].bias, same_as_old.layers[1].bias)


def test_a_shape_that_differs_is_refused_before_anything_is_written(tmp_path):
    state = {name: t.clone() for name, t in Net(2).state_dict().items() if name != "head.weight"}
    state["layers.2.weight"] = torch.zeros(16, 64)
    st.save_file(state, tmp_path / "m.safetensors")
    old = Net(1)
    with pytest.raises(ValueError, match=r"'layers.2.weight' has shape \[16, 64\]"):
        st.load_into(old, tmp_path / "m.safetensors")
    assert same(old, Net(1))


def test_two_tensors_with_one_name_are_refused(tmp_path):
    st.save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="both 'a' and 'b' of the model are renamed to 'weight'"):
        st.load_into(torch.nn.LayerNorm(2, bias=False), tmp_path / "m.safetensors", rename=lambda name: "weight")


def test_dtypes_are_converted_and_strides_kept(tmp_path):
    class Other(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(6, 4, dtype=torch.float32).t())

    values = torch.randn(4, 6, dtype=torch.bfloat16)
    st.save_file({"weight": values}, tmp_path / "m.safetensors")
    module = Other()
    st.load_into(module, tmp_path / "m.safetensors")
    assert not module.weight.is_contiguous() and torch.equal(module.weight, values.float())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_there_is_no_second_copy(tmp_path):
    class Large(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            sizes = [(1 << 24,), (1 << 22,), (333,), (1 << 25,)]
            self.all = torch.nn.ParameterList(torch.randn(size, device="cuda").bfloat16() for size in sizes)
            self.other = torch.nn.Parameter(torch.randn(1 << 20, device="cuda"))

    new, old = Large(2), Large(1)
    state = {name: t.cpu() for name, t in new.state_dict().items()}
    state["other"] = state["other"].bfloat16()
    st.save_file(state, tmp_path / "m.safetensors")
    before = pointers(old)
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    done = st.load_into(old, tmp_path / "m.safetensors")
    assert torch.cuda.max_memory_allocated() - start <= 8 << 20
    assert pointers(old) == before and done.receipts
    for name, tensor in old.state_dict().items():
        assert torch.equal(tensor.cpu(), state[name].to(tensor.dtype)), name
