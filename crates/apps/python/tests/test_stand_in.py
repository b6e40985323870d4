"""``sys.modules["safetensors"] = straightway``: programs use this package for safetensors, with the same results."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

#: Runs before everything else.
FIRST = """
    import sys
    import straightway
    sys.modules["safetensors"] = straightway
    import safetensors, safetensors.torch, straightway.torch
    assert safetensors.torch is straightway.torch is sys.modules["safetensors.torch"]
    assert safetensors.torch.__name__ == "straightway.torch" and safetensors.safe_open is straightway.safe_open
    import os, tempfile, torch
    folder = tempfile.mkdtemp(dir=sys.argv[1])
    def same(found, expected):
        assert sorted(found) == sorted(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
"""


def run(tmp_path, code, *needs):
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    program = textwrap.dedent(FIRST) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_transformers_saves_and_loads_by_this_package(tmp_path):
    run(
        tmp_path,
        """
        from transformers import LlamaConfig, LlamaForCausalLM, modeling_utils
        assert modeling_utils.safe_open is straightway.safe_open
        # The proportions of Llama 3, smaller, with random weights. Tied, and in several files.
        config = LlamaConfig(hidden_size=64, intermediate_size=224, num_hidden_layers=3, num_attention_heads=8,
                             num_key_value_heads=2, vocab_size=512, tie_word_embeddings=True)
        for dtype in (torch.float32, torch.bfloat16):
            model = LlamaForCausalLM(config).to(dtype)
            model.save_pretrained(folder, max_shard_size="100KB")
            assert any(name.startswith("model-00001") for name in os.listdir(folder))
            loaded = LlamaForCausalLM.from_pretrained(folder, dtype=dtype)
            same(loaded.state_dict(), model.state_dict())
            assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
            tokens = torch.arange(16).reshape(2, 8)
            # In bfloat16 a loaded model keeps some buffers in float32, with any loader.
            assert dtype == torch.bfloat16 or torch.equal(loaded(tokens).logits, model(tokens).logits)
    """,
        "transformers",
    )


def test_the_trainer_of_transformers_saves_and_resumes(tmp_path):
    run(
        tmp_path,
        """
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
        config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
                             vocab_size=64)
        rows = [{"input_ids": torch.arange(8) + n, "labels": torch.arange(8) + n} for n in range(8)]
        def trainer(steps):
            options = TrainingArguments(folder, max_steps=steps, save_steps=2, report_to=[], use_cpu=True,
                                        disable_tqdm=True, logging_steps=100)
            return Trainer(LlamaForCausalLM(config), options, train_dataset=rows)
        trainer(2).train()
        again = trainer(4)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 4
    """,
        "transformers",
        "accelerate",
    )


def test_accelerate_saves_and_loads_by_this_package(tmp_path):
    run(
        tmp_path,
        """
        import accelerate
        from accelerate import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        accelerator = Accelerator(cpu=True)
        accelerator.save_model(model, folder)
        with init_empty_weights():
            empty = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        loaded = load_checkpoint_and_dispatch(empty, folder, device_map={"": "cpu"})
        same(loaded.state_dict(), model.state_dict())
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.save_state(folder + "/state")
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for parameter in model.parameters():
            parameter.data.zero_()
        accelerator.load_state(folder + "/state")
        same(model.state_dict(), before)
    """,
        "accelerate",
    )


def test_diffusers_saves_and_loads_by_this_package(tmp_path):
    run(
        tmp_path,
        """
        from diffusers import UNet2DModel
        model = UNet2DModel(
            sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 32),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )
        model.save_pretrained(folder)
        assert any(name.endswith(".safetensors") for name in os.listdir(folder))
        same(UNet2DModel.from_pretrained(folder).state_dict(), model.state_dict())
    """,
        "diffusers",
    )


def test_sentence_transformers_saves_and_loads_by_this_package(tmp_path):
    run(
        tmp_path,
        """
        from sentence_transformers import SentenceTransformer, models
        from tokenizers import Tokenizer, models as kinds
        from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
        words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(kinds.WordLevel(words, unk_token="[UNK]")), pad_token="[PAD]",
            unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]",
        )
        config = BertConfig(
            vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        )
        BertModel(config).save_pretrained(folder + "/bert")
        tokenizer.save_pretrained(folder + "/bert")
        word = models.Transformer(folder + "/bert")
        model = SentenceTransformer(modules=[word, models.Pooling(16), models.Dense(16, 8)], device="cpu")
        model.save(folder + "/sentences")
        loaded = SentenceTransformer(folder + "/sentences", device="cpu")
        same(loaded.state_dict(), model.state_dict())
    """,
        "sentence_transformers",
        "transformers",
    )


def test_the_hugging_face_storage_of_pytorch_writes_and_reads_by_this_package(tmp_path):
    run(
        tmp_path,
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
        state = {"a": torch.randn(30, 7), "b": torch.arange(9), "c": torch.ones(4, 4, dtype=torch.bfloat16)}
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(path=folder))
        written = next(name for name in os.listdir(folder) if name.endswith(".safetensors"))
        same(straightway.torch.load_file(f"{folder}/{written}"), state)
        target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(target, storage_reader=HuggingFaceStorageReader(path=folder))
        same(target, state)
    """,
    )


def test_importing_straightway_does_not_change_imports_of_safetensors(tmp_path):
    code = """
        import straightway, safetensors.torch
        assert safetensors.torch.__name__ == "safetensors.torch"
        import straightway.torch
        assert safetensors.safe_open is not straightway.safe_open
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
