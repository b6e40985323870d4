"""A small model with all that the engines' loaders filter, rename or leave on the CPU."""

import json

import pytest


@pytest.fixture
def model(tmp_path):
    """The folder of a model of 3 files with an index, and the folder of its draft model."""
    import torch
    from safetensors.torch import save_file

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape).to(dtype)

    torch.manual_seed(7)
    # Names are in another order in the file than sorted, and files in another than their names as text.
    files = {
        "model-2.safetensors": {
            "model.language_model.layers.0.q_proj.weight": tensor(32, 32),
            **{f"model.layers.0.mlp.experts.{e}.up.weight": tensor(16, 32) for e in range(4)},
            **{f"model.layers.0.mlp.experts.{e}.up.weight_scale": tensor(1, dtype=torch.float32) for e in range(4)},
        },
        "model-10.safetensors": {
            "language_model.layers.1.weight": tensor(8, 8),
            "language_model.layers.2.weight": tensor(8, 9).to(torch.float8_e4m3fn),
        },
        "model-1.safetensors": {
            "visual.patch.weight": tensor(16, 3, 2, 2),
            "visual.empty": torch.empty(0, 4),
            "language_model.embed.weight": tensor(64, 32),
            "model.engram.embed.weight": tensor(256, 8),
            "model.scalar": torch.tensor(3, dtype=torch.int64),
        },
    }
    folder = tmp_path / "model"
    folder.mkdir()
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    # A second form of the same weights, which the index does not name.
    save_file(files["model-10.safetensors"], folder / "extra.safetensors")
    places = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    draft = tmp_path / "draft"
    draft.mkdir()
    save_file({"layers.0.weight": tensor(4, 4), "lm_head.weight": tensor(8, 4)}, draft / "model.safetensors")
    return folder, draft


def assert_same(found, expected):
    """The same tensors, each file's in any order."""
    import torch

    found, expected = dict(found), dict(expected)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        ours = found[name]
        assert (ours.dtype, ours.shape, ours.device) == (value.dtype, value.shape, value.device), name
        bits = [each.contiguous().view(-1).view(torch.uint8) for each in (ours, value)]
        assert torch.equal(*bits), name
