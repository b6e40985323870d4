"""Processes that save, remove, tag and prune at once, killed at any moment."""

import json
import os
import subprocess
import sys


def test_after_500_kills_nothing_that_was_acknowledged_or_tagged_is_lost():
    # In a process of its own: it forks, and this one has threads.
    script = os.path.join(os.path.dirname(__file__), "kills.py")
    seed = int.from_bytes(os.urandom(4), "little")
    done = subprocess.run([sys.executable, script, "500", str(seed)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-4000:]}"
    told = json.loads(done.stdout)
    print(told)
    assert told["kills"] >= 500 and told["lost"] == 0
    # It covered all operations.
    assert told["saves_acknowledged"] > 50 and told["tags_given"] > 5 and told["steps_removed"] > 5
