"""The state that the benchmarks of checkpoints save: large and small tensors, like a model's and its optimizer's."""

from harness import timed as timed_call

TENSORS = 64


def make_state(total, device):
    """A state of about `total` bytes."""
    import torch

    torch.manual_seed(1)
    each = total // TENSORS // 2

    def weight():
        noise = torch.randint(-(2**15), 2**15, (each,), device=device, dtype=torch.int16)
        return noise.view(torch.bfloat16)

    state = {f"layers.{i}.weight": weight() for i in range(TENSORS)}
    return state | {f"layers.{i}.bias": torch.randn(4097, device=device) for i in range(TENSORS)}


def checksum(state):
    """The sum of all bytes, as whole numbers of two bytes."""
    import torch

    return sum(int(t.view(torch.int16).sum(dtype=torch.int64)) for t in state.values())


def synchronize(state):
    """Waits for the GPU if the state is in its memory."""
    import torch

    if next(iter(state.values())).is_cuda:
        torch.cuda.synchronize()


def clear(state):
    """Overwrites every tensor with zeros."""
    for tensor in state.values():
        tensor.zero_()
    synchronize(state)


def timed(work, state):
    """The seconds of a call and its result, with the GPU's work finished before and after."""
    return timed_call(work, lambda: synchronize(state), lambda: synchronize(state))
