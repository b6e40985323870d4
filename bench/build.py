#!/usr/bin/env python3
"""Compares what a newcomer waits for in two commits: `make demo` from a clean clone without caches.

Each run clones one commit into an empty folder and builds with an empty cache; only the downloaded crates are shared. The
figure is the user CPU time of the whole command, because the wall-clock time of a shared machine scatters more. The
bar: the new commit takes at most 0.7 of the old one's time. Needs a quiet machine; a run takes about five minutes on two
cores.

    python3 bench/build.py --old COMMIT [--new HEAD] [--rounds 1] [--folder DIR] [--keep DIR]

`--keep DIR` keeps what bench/versions.py compares: the program of each commit as DIR/old and DIR/new, and its wheel in
DIR/old.wheel and DIR/new.wheel. The wheels are built after the measurement.
"""

import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

from harness import ROOT, Bench, alternate, facts, parser, sh, show_compared, version, write

BAR = 0.7


def clean_demo(commit, folder, keep=None):
    """Runs `make demo` of a commit in a clean clone, and returns its seconds. Keeps the program and a wheel under the name
    `keep`."""
    clone, cache = os.path.join(folder, "clone"), os.path.join(folder, "cache")
    sh("git", "clone", "--quiet", ROOT, clone)
    sh("git", "-C", clone, "checkout", "--quiet", "--detach", commit)
    # Downloads are not part of the figure.
    sh("cargo", "fetch", "--quiet", "--locked", "--manifest-path", os.path.join(clone, "Cargo.toml"))
    environment = {name: value for name, value in os.environ.items() if name not in ("CARGO_TARGET_DIR", "CACHE")}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        ["make", "demo"],
        cwd=clone,
        env=environment | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
    if keep:
        os.makedirs(os.path.dirname(keep), exist_ok=True)
        shutil.copy(os.path.join(cache, "target", "release", "straightway"), keep)
        venv, target = os.path.join(folder, "venv"), os.path.join(cache, "target")
        sh("python3", "-m", "venv", venv)
        sh(os.path.join(venv, "bin", "pip"), "install", "--quiet", "maturin>=1.9,<2")
        wheel = [os.path.join(clone, "tools", "wheel"), venv, os.path.abspath(keep) + ".wheel", "--release"]
        sh(*wheel, env=environment | {"CARGO_TARGET_DIR": target})
    shutil.rmtree(clone)
    shutil.rmtree(cache)
    return {
        "user_s": round(after.ru_utime - before.ru_utime, 1),
        "system_s": round(after.ru_stime - before.ru_stime, 1),
        "wall_s": round(seconds, 1),
    }


def main():
    options = parser(__doc__, "build.json")
    options.add_argument("--old", required=True, help="the commit to compare with")
    options.add_argument("--new", default="HEAD", help="the commit to measure [default: HEAD]")
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--folder", help="folder for clones and caches [default: the system's temporary folder]")
    options.add_argument("--keep", help="folder for the programs and the wheels")
    args = options.parse_args()
    bench = Bench(args)
    commits = {side: sh("git", "-C", ROOT, "rev-parse", "--short", getattr(args, side)).strip() for side in ("old", "new")}
    for side, _ in alternate(commits, args.rounds, warm_up=False):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            run = clean_demo(commits[side], folder, args.keep and os.path.join(args.keep, side))
        bench.note(side, run)
        print(f"{side} {commits[side]}: {run['user_s']} s user, {run['wall_s']} s", flush=True)
    new, old = (statistics.median(run["user_s"] for run in bench.runs[side]) for side in ("new", "old"))
    bench.compare("make demo from a clean clone, user CPU seconds", new, old, BAR, better="at most")
    show_compared(bench.rows, 48, lambda value: f"{value:.1f}")
    result = facts({"rustc": version("rustc")}) | {"commits": commits, "runs": bench.runs, "rows": bench.rows}
    write(args.out, result)


if __name__ == "__main__":
    main()
