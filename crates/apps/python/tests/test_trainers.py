"""PyTorch Lightning, Accelerate and the Trainer of Transformers: a resumed training equals an uninterrupted one."""

import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def batches(count=8):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 6, generator=generator) for _ in range(count)]


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))


def same(found, expected):
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_lightning_resumes_where_it_was(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from straightway.lightning import CheckpointIO

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = module()
            self.net[1] = torch.nn.Identity()
            self.save_hyperparameters()

        def training_step(self, batch, index):
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]

    def train(steps, folder, path=None):
        keep = lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1, save_last=True)
        trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            callbacks=[keep],
            plugins=[CheckpointIO()],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        torch.manual_seed(1)
        task = Task()
        trainer.fit(task, torch.utils.data.DataLoader(batches(), batch_size=None), ckpt_path=path)
        assert trainer.global_step == steps
        return task

    whole = train(16, tmp_path / "whole")
    train(8, tmp_path / "part")
    names = sorted(os.listdir(tmp_path / "part"))
    assert (
        any("step=4" in name for name in names) and "last.ckpt" in names and os.path.isdir(tmp_path / "part/last.ckpt")
    )
    again = train(16, tmp_path / "rest", tmp_path / "part/last.ckpt")
    same(again.state_dict(), whole.state_dict())
    # A path that is saved to again has only the last checkpoint.
    assert len([n for n in os.listdir(tmp_path / "part/last.ckpt") if n.startswith("step-")]) == 1
    with pytest.raises(FileNotFoundError):
        CheckpointIO().load_checkpoint(tmp_path / "absent")


def test_lightning_removes_old_checkpoints(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from straightway.lightning import CheckpointIO

    io = CheckpointIO()
    for n in range(3):
        io.save_checkpoint({"n": n, "w": torch.full((3,), n)}, tmp_path / f"{n}.ckpt")
    io.remove_checkpoint(tmp_path / "0.ckpt")
    io.remove_checkpoint(tmp_path / "2.ckpt")
    assert os.listdir(tmp_path) == ["1.ckpt"] and io.load_checkpoint(tmp_path / "1.ckpt")["n"] == 1
    io.teardown()


def test_accelerate_resumes_where_it_was(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from straightway.accelerate import Checkpointer

    def job(steps, resume):
        accelerator = accelerate.Accelerator(cpu=True)
        net = module()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
        torch.manual_seed(9)
        seen = {"batches": 0}
        with Checkpointer(accelerator, tmp_path, keep_last=2) as checkpointer:
            first = 0
            if resume:
                first = checkpointer.restore(into=seen).step + 1
            for step in range(first, steps):
                optimizer.zero_grad()
                accelerator.backward(net(batches()[step % 8]).pow(2).mean())
                optimizer.step()
                scheduler.step()
                seen["batches"] += 1
                if resume is not None:
                    checkpointer.save(step, seen)
        accelerator.free_memory()
        return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}, seen

    whole, _ = job(10, None)
    job(5, False)
    again, seen = job(10, True)
    # With dropout: the random states are restored too.
    same(again, whole)
    assert seen == {"batches": 10}


def test_the_trainer_of_transformers_resumes_where_it_was(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from straightway.transformers import CheckpointCallback

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        vocab_size=64,
        attention_dropout=0.1,
        tie_word_embeddings=True,
    )
    rows = [{"input_ids": torch.arange(8) + n, "labels": torch.arange(8) + n} for n in range(16)]

    def train(folder, stop=None):
        class Stop(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop |= state.global_step == stop

        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            max_steps=10,
            per_device_train_batch_size=4,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_steps=100,
            seed=5,
        )
        callback = CheckpointCallback(folder, every=3, keep_last=2)
        transformers.set_seed(5)
        model = transformers.LlamaForCausalLM(config)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback, Stop()])
        trainer.train(resume_from_checkpoint=callback.resume())
        return trainer

    whole = train(tmp_path / "whole")
    assert train(tmp_path / "part", stop=5).state.global_step == 5
    assert CheckpointCallback(tmp_path / "none", every=1).resume() is False
    again = train(tmp_path / "part")
    assert again.state.global_step == 10
    same(again.model.state_dict(), whole.model.state_dict())
