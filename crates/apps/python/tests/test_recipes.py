"""The recipes of docs/python.md, each run as it stands there."""

import pathlib
import re

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import straightway

pytestmark = pytest.mark.filterwarnings("ignore")
DOCS = pathlib.Path(__file__).parents[4] / "docs/python.md"
RECIPES = (
    dict(re.findall(r"^```python\n# recipe: (\w+)\n(.*?)^```", DOCS.read_text(), flags=re.M | re.S))
    if DOCS.exists()
    else {}
)


def run(name, **given):
    exec(compile(RECIPES[name], f"the recipe for {name}", "exec"), given)
    return given


@pytest.mark.skipif(not RECIPES, reason="docs/python.md is not here")
def test_every_recipe_has_a_test():
    assert sorted(RECIPES) == sorted(
        name[len("test_recipe_") :] for name in globals() if name.startswith("test_recipe_")
    )


def test_recipe_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    # The proportions of Llama 3.2 1B, smaller, with random weights.
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=256,
        tie_word_embeddings=True,
    )
    expected = transformers.LlamaForCausalLM(config)
    expected.save_pretrained(tmp_path, max_shard_size="100KB")
    model = run("transformers", folder=str(tmp_path), device="cpu")["model"]
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_recipe_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, index):
            return self.layer(batch).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    loader = torch.utils.data.DataLoader([torch.ones(2, 3)] * 4, batch_size=None)
    trainer = run("lightning", folder=str(tmp_path), task=Task(), loader=loader)["trainer"]
    assert trainer.global_step == 8 and (tmp_path / "last.ckpt").is_dir()


def test_recipe_torchtitan(tmp_path):
    state = {"model": {"w": torch.randn(5, 3)}, "step": 20}
    expected = state["model"]["w"].clone()
    given = run("torchtitan", folder=str(tmp_path), state=state)
    assert max(given["steps"]) == 20 and torch.equal(state["model"]["w"], expected)


def test_recipe_jax(tmp_path):
    pytest.importorskip("jax", reason="JAX is not installed")
    straightway.save_file(
        {"a": torch.full((2, 2), 3.0), "b": torch.ones(4, dtype=torch.bfloat16)}, tmp_path / "m.safetensors"
    )
    norms = run("jax", folder=str(tmp_path))["norms"]
    assert float(norms["a"]) == 36 and float(norms["b"]) == 4
