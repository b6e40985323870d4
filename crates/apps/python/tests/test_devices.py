"""Block devices are overwritten only on request. These tests need root and loop devices."""

import os
import shutil
import stat
import subprocess

import numpy
import pytest
import straightway
import straightway.numpy

REFUSAL = "it is a block device, and its contents would be lost"
BYTES = 1 << 20


@pytest.fixture
def device(tmp_path):
    """A loop device with random content, as its path and its content."""
    content = numpy.random.default_rng(1).bytes(BYTES)
    (tmp_path / "image").write_bytes(content)
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("needs root and losetup")
    made = subprocess.run(["losetup", "-f", "--show", tmp_path / "image"], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"losetup: {made.stderr.strip()}")
    path = made.stdout.strip()
    yield path, content
    subprocess.run(["losetup", "-d", path], check=True)


def read(path):
    with open(path, "rb") as opened:
        return opened.read()


def test_copy_and_save_file_refuse_a_device(device, tmp_path):
    path, content = device
    (tmp_path / "file").write_bytes(b"new" * 1000)
    into = tmp_path / "into"
    into.mkdir()
    os.mknod(into / "file", stat.S_IFBLK | 0o600, os.stat(path).st_rdev)
    for refused in (
        lambda: straightway.copy(tmp_path / "file", path),
        lambda: straightway.copy([tmp_path / "file"], into),
        lambda: straightway.numpy.save_file({"a": numpy.zeros(1000)}, path),
        lambda: straightway.numpy.save_file({"a": numpy.zeros(1000)}, into / "file"),
    ):
        with pytest.raises(Exception, match=REFUSAL):
            refused()
        assert read(path) == content
    assert os.listdir(into) == ["file"]


def test_copy_overwrites_a_device_on_request(device, tmp_path):
    path, content = device
    (tmp_path / "file").write_bytes(b"x" * 1000)
    assert straightway.copy(tmp_path / "file", path, to_device=True).bytes == 1000
    assert read(path) == b"x" * 1000 + bytes(24) + content[1024:]
    with pytest.raises(ValueError, match="verify cannot be used with to_device"):
        straightway.copy(tmp_path / "file", path, to_device=True, verify=True)
    with pytest.raises(Exception, match="it is not a block device"):
        straightway.copy(tmp_path / "file", tmp_path / "other", to_device=True)
