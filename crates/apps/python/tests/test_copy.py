"""Copies: links, patterns, what was verified, and names of memory."""

import os

import pytest
import straightway


def test_a_snapshot_of_a_model_hub_arrives_as_files(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (blobs / name).write_bytes(os.urandom(100_001))
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    receipt = straightway.copy(snapshot, tmp_path / "copy", verify=True)
    assert receipt.bytes == 200_002
    assert receipt.verified["bytes"] == 200_002 and receipt.verified["method"] == "read_back"
    for name in ("config.json", "model.safetensors"):
        copy = tmp_path / "copy" / name
        assert not copy.is_symlink() and copy.read_bytes() == (blobs / name).read_bytes()
    straightway.copy(snapshot, tmp_path / "kept", links="keep")
    assert (tmp_path / "kept" / "config.json").is_symlink()
    (snapshot / "near").symlink_to("config.json")
    assert straightway.copy(snapshot, tmp_path / "followed", links="follow").verified is None
    assert not (tmp_path / "followed" / "near").is_symlink()
    with pytest.raises(ValueError, match="auto, keep or follow"):
        straightway.copy(snapshot, tmp_path / "x", links="none")


def test_a_pattern_copies_what_it_matches(tmp_path):
    for name in ("a.json", "b.json", "c.bin"):
        (tmp_path / name).write_text(name)
    into = tmp_path / "into"
    into.mkdir()
    straightway.copy(tmp_path / "*.json", into)
    assert sorted(path.name for path in into.iterdir()) == ["a.json", "b.json"]
    with pytest.raises(FileNotFoundError, match="matches nothing"):
        straightway.copy(tmp_path / "*.txt", into)


@pytest.mark.parametrize("target", ["cuda", "cuda:0", "cuda0", "host:", "cpu", "p2p:"])
def test_a_name_of_memory_does_not_become_a_file(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_bytes(b"x")
    with pytest.raises(ValueError, match="memory"):
        straightway.copy("source", target)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    straightway.copy("source", f"./{target}")
    assert (tmp_path / target).read_bytes() == b"x"
